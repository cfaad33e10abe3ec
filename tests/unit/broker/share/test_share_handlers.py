"""ShareFetch and ShareAcknowledge on logs in memory: very many partitions, and limits that a client meets."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.serial import entity_reader

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Slicer
from skep.broker.handlers import share_acknowledge, share_fetch
from skep.broker.share.share_sessions import SessionKey
from skep.security.access import FULL_ACCESS
from skep.wire.apis import SHARE_ACKNOWLEDGE
from skep.wire.codec import response_class
from skep.wire.headers import response_header
from tests.manual_clock import TickingClock
from tests.slices import counting_turns
from tests.unit.broker.share.scene import GROUP, ShareScene, deliver, run, settle

MANY = 200
STEPS_PER_TURN = 5
OTHER = SessionKey(GROUP, "m2")


def services(scene: ShareScene) -> Any:
    clock = TickingClock()
    return SimpleNamespace(
        share_partitions=scene.shares,
        share_sessions=scene.sessions,
        slicer=Slicer(clock),
        clock=scene.clock,
        config=SimpleNamespace(fetch_max_bytes=1 << 30, max_response_bytes=1 << 30),
        catalog=SimpleNamespace(image=scene.image),
    )


def request(scene: ShareScene, epoch: int, partitions: range, batches: Any = (), **fields: Any) -> Any:
    named = [SimpleNamespace(partition_index=index, acknowledgement_batches=batches) for index in partitions]
    body = {
        "group_id": GROUP,
        "member_id": "m1",
        "share_session_epoch": epoch,
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": [SimpleNamespace(topic_id=scene.topic_id, partitions=named)],
        "forgotten_topics_data": [],
        **fields,
    }
    return SimpleNamespace(
        version=2,
        correlation_id=1,
        connection=None,
        access=FULL_ACCESS,
        throttle=None,
        listener_name="",
        body=SimpleNamespace(**body),
    )


async def answered(response: Any) -> Any:
    """What a handler returns at once or later."""
    return await response if isinstance(response, Awaitable) else response


def acknowledgement_codes(parts: Any) -> list[ErrorCode]:
    """The code of each partition in a ShareAcknowledge response."""
    header = len(response_header(SHARE_ACKNOWLEDGE.key, 2, 1))
    response, _ = entity_reader(response_class(SHARE_ACKNOWLEDGE.key, 2))(b"".join(parts), header)
    return [part.error_code for topic in response.responses for part in topic.partitions]


def test_others_have_their_turns_while_a_fetch_names_very_many_partitions() -> None:
    async def scenario(scene: ShareScene) -> None:
        wide = request(scene, 0, range(MANY))
        parts, turns = await counting_turns(share_fetch.handle(services(scene), wide))
        assert sum(map(len, parts)) > MANY
        assert turns > 3 * MANY / STEPS_PER_TURN

    run(scenario)


def test_others_have_their_turns_while_very_many_partitions_are_acknowledged() -> None:
    async def scenario(scene: ShareScene) -> None:
        given = services(scene)
        await answered(share_fetch.handle(given, request(scene, 0, range(1))))
        batch = SimpleNamespace(first_offset=0, last_offset=0, acknowledge_types=(1,))
        wide = request(scene, 1, range(MANY), (batch,))
        response, turns = await counting_turns(share_acknowledge.handle(given, wide))
        assert len(acknowledgement_codes(response)) == MANY
        assert turns > 2 * MANY / STEPS_PER_TURN

    run(scenario)


def batch(first: int, last: int, *types: int) -> Any:
    return SimpleNamespace(first_offset=first, last_offset=last, acknowledge_types=types)


async def results(given: Any, asked: Any) -> tuple[list[ErrorCode], int]:
    """The code of each partition that was acknowledged, and in how many turns."""
    response, turns = await counting_turns(answered(share_acknowledge.handle(given, asked)))
    return acknowledgement_codes(response), turns


def test_others_have_their_turns_while_very_many_batches_are_acknowledged() -> None:
    async def scenario(scene: ShareScene) -> None:
        given = services(scene)
        await answered(share_fetch.handle(given, request(scene, 0, range(1))))
        await settle()
        most = [batch(offset, offset, 1) for offset in range(20_000)]
        codes, turns = await results(given, request(scene, 1, range(1), most))
        assert codes == [ErrorCode.invalid_record_state], "nothing was acquired"
        assert turns > len(most) / STEPS_PER_TURN / 2
        codes, _ = await results(given, request(scene, 2, range(1), [*most, batch(20_000, 20_000, 1)]))
        assert codes == [ErrorCode.invalid_request]

    run(scenario)


@pytest.mark.parametrize("wrong", [499, 500, 501])
def test_batches_that_are_checked_in_parts_are_checked_for_their_order(wrong: int) -> None:
    async def scenario(scene: ShareScene) -> None:
        given = services(scene)
        await answered(share_fetch.handle(given, request(scene, 0, range(1))))
        await settle()
        batches = [batch(2 * number, 2 * number + 1, 1) for number in range(1_100)]
        batches[wrong] = batch(2 * wrong - 2, 2 * wrong + 1, 1)
        assert (await results(given, request(scene, 1, range(1), batches)))[0] == [ErrorCode.invalid_request]

    run(scenario)


@pytest.mark.parametrize("others", [0, 1])
def test_a_fetch_whose_session_ends_while_it_waits_gets_no_records(others: int) -> None:
    """The group coordinator has fenced the member, or it has begun another session. It is told, as by its next request.
    Partitions have no error: clients do not expect SHARE_SESSION_NOT_FOUND there."""

    async def scenario(scene: ShareScene) -> None:
        given = services(scene)
        for number in range(others):
            scene.sessions.begin(SessionKey(GROUP, f"other-{number}"), None, [(scene.topic_id, 0)])
        await answered(share_fetch.handle(given, request(scene, 0, range(1))))
        await settle()
        waiting = request(scene, 1, range(1), max_wait=timedelta(seconds=60))
        task = asyncio.ensure_future(share_fetch.handle(given, waiting))
        await settle()
        assert not task.done()
        scene.sessions.close(scene.sessions.find(SessionKey(GROUP, "m1")))
        scene.append(3)
        with pytest.raises(KafkaError) as refused:
            await task
        assert refused.value.code is ErrorCode.share_session_not_found
        assert deliver(await scene.loaded(), "m2") == [(0, 2, 1)]

    run(scenario)


class LosableConnection:
    when_lost: Any = None
    is_lost = False

    def lose(self) -> None:
        self.is_lost = True
        if self.when_lost is not None:
            self.when_lost(self)


def steps_of(work: Any, most: int | None = None) -> int:
    """Runs work in slices, to its end or for so many steps. Returns how many it has made."""
    steps = 0
    while most is None or steps < most:
        try:
            next(work)
        except StopIteration:
            break
        steps += 1
    return steps


def at_every_step(play: Callable[[ShareScene, int], Awaitable[bool]]) -> None:
    """Calls ``play`` with 0, 1, ... steps, each in a scene of its own, until it returns that there are fewer."""
    goes_on, steps = True, 0

    async def scenario(scene: ShareScene) -> None:
        nonlocal goes_on
        scene.append(3)
        goes_on = await play(scene, steps)

    while goes_on:
        run(scenario)
        steps += 1
    assert steps > 4


async def work_of(scene: ShareScene, epoch: int, connection: Any = None) -> Any:
    """A fetch to be run in steps. The share partition is known, and another member has a session."""
    scene.sessions.begin(OTHER, None, [(scene.topic_id, 0)])
    await scene.loaded()
    # Partition 1 does not exist; it comes first. Bytes are looked for before records are acquired.
    fetch = request(scene, epoch, range(1, -1, -1), min_bytes=2, max_wait=timedelta(seconds=60))
    fetch.connection = connection
    if epoch:
        session = scene.sessions.begin(SessionKey(GROUP, "m1"), connection, [(scene.topic_id, 1), (scene.topic_id, 0)])
        session.epoch = epoch
    return share_fetch._released_at_once(services(scene), SessionKey(GROUP, "m1"), fetch)


@pytest.mark.parametrize("epoch", [0, 2], ids=["begins", "goes-on"])
@pytest.mark.parametrize("steps_after", [0, 1, 2, 3])
def test_a_fetch_whose_connection_is_lost_in_the_midst_of_it_leaves_nothing_behind(
    epoch: int, steps_after: int
) -> None:
    """The connection cancels the fetch in its next turn of the event loop. Some more of it may happen before."""

    async def lost_after(scene: ShareScene, steps: int) -> bool:
        connection = LosableConnection()
        work = await work_of(scene, epoch, connection)
        has_steps = steps_of(work, steps) == steps
        connection.lose()
        with suppress(KafkaError):
            steps_of(work, steps_after)
        work.close()
        assert len(scene.sessions) == 1
        [(first, last, _)] = deliver(await scene.loaded(), OTHER.member_id)
        assert (first, last) == (0, 2), "the others get all records"
        return has_steps

    at_every_step(lost_after)


@pytest.mark.parametrize("has_others", [True, False])
def test_a_fetch_whose_member_is_fenced_in_the_midst_of_it_leaves_nothing_behind(has_others: bool) -> None:
    async def fenced_after(scene: ShareScene, steps: int) -> bool:
        work = await work_of(scene, 2)
        if steps_of(work, steps) < steps:
            return False
        list(scene.sessions.end_members(GROUP, ["m1"] if has_others else ["m1", "m2"]))
        with suppress(KafkaError):
            steps_of(work)
        await settle()
        if has_others:
            [(first, last, _)] = deliver(await scene.loaded(), OTHER.member_id)
            assert (first, last) == (0, 2)
        else:
            assert not scene.shares.of_group(GROUP), "a share partition without sessions is kept"
        return True

    at_every_step(fenced_after)


def test_a_session_over_the_limit_is_refused_when_the_client_has_waited() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.limits = (0, 1000)
        fetch = share_fetch.handle(services(scene), request(scene, 0, range(1), max_wait=timedelta(milliseconds=50)))
        task = asyncio.ensure_future(fetch)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        with pytest.raises(KafkaError) as refused:
            await task
        assert refused.value.code is ErrorCode.share_session_limit_reached

    run(scenario)


def test_a_response_is_there_at_once_if_the_state_is_written_at_once() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.persister.is_here = True
        given = services(scene)
        given.slicer = Slicer(scene.clock)
        await answered(share_fetch.handle(given, request(scene, 0, range(1))))
        await settle()
        scene.append(10)
        fetched = share_fetch.handle(given, request(scene, 1, range(1)))
        assert isinstance(fetched, tuple)
        accepted = share_acknowledge.handle(given, request(scene, 2, range(1), [batch(0, 3, 1)]))
        assert isinstance(accepted, tuple)
        assert acknowledgement_codes(accepted) == [ErrorCode.none]
        assert [write.start_offset for write in scene.persister.writes] == [4]
        await settle()
        both = share_fetch.handle(given, request(scene, 3, range(1), [batch(4, 9, 1)], max_wait=timedelta(0)))
        assert isinstance(both, tuple)
        assert [write.start_offset for write in scene.persister.writes] == [4, 10]

    run(scenario)


def test_a_response_waits_for_a_write_that_takes_its_time() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.persister.is_here = True
        given = services(scene)
        given.slicer = Slicer(scene.clock)
        await answered(share_fetch.handle(given, request(scene, 0, range(1))))
        await settle()
        scene.append(10)
        share_fetch.handle(given, request(scene, 1, range(1)))
        scene.persister.permits = asyncio.Semaphore(0)
        accepted = asyncio.ensure_future(
            answered(share_acknowledge.handle(given, request(scene, 2, range(1), [batch(0, 3, 1)])))
        )
        await settle()
        assert not accepted.done()
        scene.persister.permits.release()
        assert acknowledgement_codes(await accepted) == [ErrorCode.none]
        assert [write.start_offset for write in scene.persister.writes] == [4]

    run(scenario)
