"""Share sessions: epochs, limits, and what their end releases."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.refused_batches import RefusedBatches
from skep.broker.share.share_sessions import SessionKey
from skep.coordination.share.share_state import ShareState
from tests.unit.broker.share.scene import GROUP, ShareScene, acknowledge, deliver, run, settle

ACCEPT = 1
KEY = SessionKey(GROUP, "m1")
OTHER = SessionKey(GROUP, "m2")


class FakeConnection:
    when_lost: Callable[[Any], None] | None = None
    refused_batches: RefusedBatches | None = None
    is_lost = False

    def lose(self) -> None:
        self.is_lost = True
        if self.when_lost is not None:
            self.when_lost(self)


def code(of: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        of()
    return refused.value.code


def test_the_epoch_counts_and_returns_to_1() -> None:
    async def scenario(scene: ShareScene) -> None:
        sessions = scene.sessions
        assert code(lambda: sessions.update(KEY, 1)) is ErrorCode.share_session_not_found
        session = sessions.begin(KEY, None, [])
        assert code(lambda: sessions.update(KEY, 2)) is ErrorCode.invalid_share_session_epoch
        assert sessions.update(KEY, 1) is session
        assert code(lambda: sessions.update(KEY, 1)) is ErrorCode.invalid_share_session_epoch
        session.epoch = 0x7FFF_FFFF
        sessions.update(KEY, 0x7FFF_FFFF)
        assert session.epoch == 1

    run(scenario)


def test_partitions_are_added_and_forgotten() -> None:
    async def scenario(scene: ShareScene) -> None:
        one, two, three = ((uuid4(), 0) for _ in range(3))
        scene.sessions.begin(KEY, None, [one, two])
        session = scene.sessions.update(KEY, 1, [three, two], [one])
        assert list(session.partitions) == [two, three]

    run(scenario)


def test_sessions_and_their_partitions_are_limited() -> None:
    async def scenario(scene: ShareScene) -> None:
        sessions, scene.limits = scene.sessions, (2, 3)
        sessions.begin(KEY, None, [(scene.topic_id, 0)])
        sessions.begin(KEY, None, [(scene.topic_id, 0)])
        sessions.begin(OTHER, None, [(scene.topic_id, 1)])
        third = SessionKey(GROUP, "m3")
        assert code(lambda: sessions.begin(third, None, [])) is ErrorCode.share_session_limit_reached
        more = [(scene.topic_id, index) for index in range(5, 7)]
        assert code(lambda: sessions.update(KEY, 1, more)) is ErrorCode.share_session_limit_reached
        sessions.update(KEY, 1, more[:1])
        sessions.close(sessions.find(OTHER))
        sessions.begin(third, None, [(scene.topic_id, 0)])
        assert len(sessions) == 2

    run(scenario)


def test_a_lost_connection_releases_what_its_members_hold() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        connection, other = FakeConnection(), FakeConnection()
        scene.sessions.begin(KEY, connection, [(scene.topic_id, 0)])
        scene.sessions.begin(OTHER, other, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share)
        connection.lose()
        assert deliver(share, "m2") == [(0, 9, 2)]
        assert len(scene.sessions) == 1

    run(scenario)


def test_no_session_begins_on_a_connection_that_is_lost() -> None:
    """A request that is handled in slices may come to its session in the turn in which the connection is lost."""

    async def scenario(scene: ShareScene) -> None:
        connection = FakeConnection()
        connection.lose()
        begin = partial(scene.sessions.begin, KEY, connection, [(scene.topic_id, 0)])
        assert code(begin) is ErrorCode.share_session_not_found
        assert len(scene.sessions) == 0

    run(scenario)


def test_a_session_that_was_begun_again_on_another_connection_outlives_the_first_one() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        connection, later = FakeConnection(), FakeConnection()
        scene.sessions.begin(KEY, connection, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share)
        scene.sessions.begin(KEY, later, [(scene.topic_id, 0)])
        connection.lose()
        assert acknowledge(share, 0, 9, ACCEPT) is not None
        assert len(scene.sessions) == 1

    run(scenario)


def test_what_a_member_holds_of_a_forgotten_partition_is_released_too() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        scene.sessions.begin(OTHER, None, [(scene.topic_id, 0)])
        session = scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share)
        scene.sessions.update(KEY, 1, (), [(scene.topic_id, 0)])
        scene.sessions.close(session)
        assert deliver(share, "m2") == [(0, 9, 2)]

    run(scenario)


def test_the_share_partitions_of_a_group_without_sessions_are_dropped_when_they_are_written() -> None:
    """Before that, the state that a new session would read lacks what was acknowledged."""

    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        session = scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share)
        scene.persister.permits = asyncio.Semaphore(0)
        written = acknowledge(share, 0, 4, ACCEPT)
        scene.sessions.close(session)
        await settle()
        assert share.error is None
        scene.persister.permits.release()
        await settle()
        assert written is not None
        assert await written is None
        assert share.error is not None
        again = await scene.loaded()
        assert again is not share

    run(scenario)


def test_a_session_that_begins_while_the_last_write_is_under_way_uses_what_is_known() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        session = scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share)
        scene.persister.permits = asyncio.Semaphore(0)
        acknowledge(share, 0, 4, ACCEPT)
        scene.sessions.close(session)
        scene.sessions.begin(OTHER, None, [(scene.topic_id, 0)])
        assert scene.find() is share
        assert deliver(share, "m2") == [(5, 9, 2)]
        scene.persister.permits.release()
        await settle()
        assert share.error is None

    run(scenario)


def test_a_group_that_is_left_while_its_state_is_read_is_dropped_afterwards() -> None:
    async def scenario(scene: ShareScene) -> None:
        session = scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = scene.find()
        scene.sessions.close(session)
        assert share.error is None
        await settle()
        assert share.error is not None

    run(scenario)


def test_members_that_were_fenced_lose_their_sessions_and_what_they_hold() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        for key in (KEY, OTHER):
            scene.sessions.begin(key, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        assert deliver(share, "m1", 4) == [(0, 9, 1)]
        scene.append(3)
        assert deliver(share, "without a session") == [(10, 12, 1)]
        for _ in scene.sessions.end_members(GROUP, ["m1", "without a session", "unknown"]):
            pass
        assert code(lambda: scene.sessions.find(KEY)) is ErrorCode.share_session_not_found
        assert scene.sessions.find(OTHER).key == OTHER
        assert deliver(share, "m2") == [(0, 9, 2), (10, 12, 2)]
        for _ in scene.sessions.end_members("another group", ["m2"]):
            pass
        assert len(scene.sessions) == 1

    run(scenario)


def test_a_session_that_begins_finds_out_that_the_state_was_replaced() -> None:
    """The group was deleted and created again, and a session of the first one is still open."""

    async def scenario(scene: ShareScene) -> None:
        scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        scene.sessions.begin(OTHER, None, [(scene.topic_id, 0)])
        await settle()
        assert share.error is None
        scene.persister.state = ShareState(7, 0, 0)
        scene.sessions.begin(OTHER, None, [(scene.topic_id, 0)])
        await settle()
        assert share.error is not None
        assert share.error.code is ErrorCode.not_leader_or_follower
        assert (await scene.loaded()) is not share

    run(scenario)


def test_a_state_that_cannot_be_checked_is_taken_as_it_is() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        scene.persister.state = ShareState(7, 0, 0)
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        scene.sessions.begin(OTHER, None, [(scene.topic_id, 0)])
        await settle()
        assert share.error is None

    run(scenario)


def test_a_check_does_not_end_a_share_partition_that_is_being_written() -> None:
    """What it writes would be missing in the state that is read again; and it is fenced by that write."""

    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share)
        scene.persister.permits = asyncio.Semaphore(0)
        written = acknowledge(share, 0, 4, ACCEPT)
        scene.persister.state = ShareState(7, 0, 0)
        scene.sessions.begin(OTHER, None, [(scene.topic_id, 0)])
        await settle()
        assert share.error is None
        scene.persister.permits.release()
        assert written is not None
        assert await written is None

    run(scenario)
