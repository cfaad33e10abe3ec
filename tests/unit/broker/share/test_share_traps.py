"""What members are told of a write, and when."""

import asyncio

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.share.share_sessions import SessionKey
from skep.coordination.share.share_window import RUNS_AT_ONCE
from tests.unit.broker.share.scene import GROUP, ShareScene, acknowledge, deliver, run, settle

ACCEPT, RENEW = 1, 4
KEY = SessionKey(GROUP, "m1")


def test_members_are_told_when_the_window_has_changed_for_all_of_them() -> None:
    """A member that is told within a change may ask for the next record in the middle of it (KAFKA-20505)."""

    async def scenario(scene: ShareScene) -> None:
        scene.append(4)
        scene.append(4)
        share = await scene.loaded()
        assert deliver(share, "m1", most=4) == [(0, 3, 1)]
        assert deliver(share, "m2", most=4) == [(4, 7, 1)]
        starts = []
        for member, first in (("m2", 4), ("m1", 0)):
            written = acknowledge(share, first, first + 3, ACCEPT, member=member)
            assert written is not None
            written.add_done_callback(lambda _: starts.append(share.window and share.window.start_offset))
        await settle()
        assert starts == [8, 8]

    run(scenario)


def test_a_member_that_is_told_of_a_failure_can_say_the_same_again_at_once() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(4)
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures.append(KafkaError(ErrorCode.coordinator_not_available))
        again = []
        written = acknowledge(share, 0, 3, ACCEPT)
        assert written is not None
        written.add_done_callback(lambda _: again.append(acknowledge(share, 0, 3, ACCEPT)))
        await settle()
        assert (written.result() or KafkaError(ErrorCode.none)).code is ErrorCode.coordinator_not_available
        [second] = again
        assert second is not None
        assert second.result() is None
        assert share.window is not None
        assert share.window.start_offset == 4

    run(scenario)


def test_a_delivery_that_could_not_be_written_counts_when_the_group_comes_back() -> None:
    """The coordinator is away while the last member leaves. What it held has been delivered once all the same."""

    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        session = scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        assert deliver(share) == [(0, 9, 1)]
        scene.persister.failures.append(KafkaError(ErrorCode.coordinator_not_available))
        scene.sessions.close(session)
        await settle()
        assert scene.persister.writes == []
        assert deliver(await scene.loaded(), "m2") == [(0, 9, 2)]

    run(scenario)


def test_what_could_not_be_written_is_written_later_and_then_the_share_partition_is_dropped() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        session = scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures += [KafkaError(ErrorCode.coordinator_not_available)] * 2
        scene.sessions.close(session)
        await settle()
        for _ in range(10):
            assert share.error is None or scene.persister.writes
            await scene.pass_ms(1_000)
        [written] = scene.persister.writes
        assert [(one.first, one.last, one.delivery_count) for one in written.batches] == [(0, 9, 1)]
        assert share.error is not None

    run(scenario)


def test_the_first_acknowledgement_of_a_turn_is_written_at_once_and_the_others_together() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.persister.is_here = True
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        assert acknowledge(share, 0, 0, ACCEPT) is None
        assert [write.start_offset for write in scene.persister.writes] == [1]
        others = [acknowledge(share, offset, offset, ACCEPT) for offset in range(1, 5)]
        assert [await other for other in others if isinstance(other, asyncio.Future)] == [None] * 4
        assert [write.start_offset for write in scene.persister.writes] == [1, 5]
        await settle()
        assert acknowledge(share, 5, 5, ACCEPT) is None

    run(scenario)


def test_a_write_that_fails_at_once_gives_the_records_back() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.persister.is_here = True
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures.append(KafkaError(ErrorCode.request_timed_out))
        refused = acknowledge(share, 0, 9, ACCEPT)
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.unknown_server_error
        await settle()
        assert acknowledge(share, 0, 9, ACCEPT) is None
        assert [write.start_offset for write in scene.persister.writes] == [10]

    run(scenario)


def test_a_write_that_is_fenced_at_once_ends_the_share_partition() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.persister.is_here = True
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures.append(KafkaError(ErrorCode.fenced_leader_epoch))
        refused = acknowledge(share, 0, 9, ACCEPT)
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.not_leader_or_follower
        assert share.error is not None
        assert scene.find() is not share

    run(scenario)


def test_a_member_is_told_also_if_the_share_partition_ends_before_its_write_is_repeated() -> None:
    """The write could not be made at once, and has not begun again."""

    async def scenario(scene: ShareScene) -> None:
        scene.persister.is_here = True
        scene.persister.permits = asyncio.Semaphore(1)
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        written = acknowledge(share, 0, 9, ACCEPT)
        assert isinstance(written, asyncio.Future)
        share.end(KafkaError(ErrorCode.not_leader_or_follower))
        assert await asyncio.wait_for(written, 30) is None

    run(scenario)


def test_what_a_member_held_in_very_many_parts_is_released_in_parts_and_written() -> None:
    async def scenario(scene: ShareScene) -> None:
        count = 2 * RUNS_AT_ONCE + 10
        scene.append(2 * count)
        session = scene.sessions.begin(KEY, None, [(scene.topic_id, 0)])
        share = await scene.loaded()
        deliver(share, most=2 * count)
        types = [RENEW, ACCEPT] * count
        acknowledge(share, 0, 2 * count - 1, *types)
        await settle()
        window = share.window
        assert window is not None
        assert len(list(window.runs)) == 2 * count
        scene.sessions.close(session)
        assert window.is_releasing
        assert window.next_fetch_offset == 0
        while window.is_releasing:
            assert scene.shares.of_group(GROUP) == (share,), "it is kept until everything is written"
            await asyncio.sleep(0)
        await settle()
        assert scene.shares.of_group(GROUP) == ()
        written = {batch.first for write in scene.persister.writes for batch in write.batches if batch.state == 0}
        assert written == set(range(0, 2 * count, 2))

    run(scenario, share_partition_max_record_locks="4000")
