"""One share partition on a log in memory: loading, delivering, writes that wait, fail and are fenced."""

import asyncio

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import Offset
from skep.coordination.share.acquisition import Order
from skep.coordination.share.share_state import UNINITIALIZED, DeliveryState, ShareState, StateBatch
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.storage.segment.batch_scan import hop
from tests.compacting import compact
from tests.unit.broker.share.scene import GROUP, LOCK_MS, TWO, ShareScene, acknowledge, deliver, run, settle

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
ACKNOWLEDGED, AVAILABLE = DeliveryState.ACKNOWLEDGED, DeliveryState.AVAILABLE


def delayed_on(*watched: object) -> DelayedFetch:
    delayed = DelayedFetch(1)
    for one in watched:
        delayed.watch(one)  # type: ignore[arg-type]
    return delayed


# Loading.


def test_the_state_is_read_once_and_what_it_has_is_delivered() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        scene.persister.state = ShareState(7, 2, 2, batches=[StateBatch(4, 6, ACKNOWLEDGED, 1)])
        share = scene.find()
        assert deliver(share) == [], "it is not loaded"
        await settle()
        assert scene.find() is share
        assert deliver(share) == [(2, 3, 1), (7, 9, 1)]
        assert scene.persister.reads == 1
        await (acknowledge(share, 2, 3, ACCEPT) or settle())
        assert scene.persister.writes == [ShareState(7, 3, 7, 0, [])]

    run(scenario)


def test_a_fetch_that_waits_is_woken_when_the_state_is_read() -> None:
    async def scenario(scene: ShareScene) -> None:
        delayed = delayed_on(scene.find())
        await settle()
        assert delayed.is_woken

    run(scenario)


def test_a_state_that_cannot_be_read_ends_the_share_partition_and_is_read_again_by_the_next_fetch() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_load_in_progress)]
        share = scene.find()
        delayed = delayed_on(share)
        await settle()
        assert delayed.is_woken
        assert share.error is not None
        assert share.error.code is ErrorCode.coordinator_not_available
        assert (await scene.loaded()) is not share

    run(scenario)


@pytest.mark.parametrize(
    ("reset", "start"),
    [("latest", 10), ("earliest", 0), ("by_duration:PT1H", 4)],
)
def test_a_group_without_a_state_begins_where_its_config_says_and_that_is_written(reset: str, start: int) -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        scene.persister.state = ShareState(0, 0, UNINITIALIZED)
        scene.lookups.found = 4
        share = await scene.loaded()
        assert share.window is not None
        assert share.window.start_offset == start
        assert scene.persister.writes == [ShareState(0, 3, start, 0)]
        if reset.startswith("by"):
            assert scene.lookups.asked == [scene.clock.now_ms() - 3_600_000]

    run(scenario, share_auto_offset_reset=reset)


def test_a_group_that_begins_in_a_time_without_records_begins_at_the_end() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        scene.persister.state = ShareState(0, 0, UNINITIALIZED)
        share = await scene.loaded()
        assert share.window is not None
        assert share.window.start_offset == 10

    run(scenario, share_auto_offset_reset="by_duration:PT1H")


# Delivering.


def test_records_above_the_high_watermark_are_not_delivered() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(5)
        share = await scene.loaded()
        scene.led.high_watermark = 0  # type: ignore[assignment]
        assert deliver(share) == []

    run(scenario)


def test_only_the_batches_with_acquired_records_are_sent() -> None:
    async def scenario(scene: ShareScene) -> None:
        for _ in range(4):
            scene.append(5)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 7, 12, RELEASE) or settle())
        delivery = share.deliver(Order("m2", 500, 500), 1 << 20, at_least_one=True)
        assert delivery is not None
        assert [tuple(one) for one in delivery.acquired] == [(7, 12, 2)]
        batch = len(delivery.records) // 2
        everything = scene.led.read(
            scene.led.log.log_start_offset, 1 << 20, up_to=scene.led.high_watermark, at_least_one=True
        )
        assert batch * 4 == everything.size

    run(scenario)


def test_open_transactions_are_waited_for_and_aborted_ones_are_left_out() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(3)
        scene.append(4, producer=1)
        scene.append(2, producer=2)
        share = await scene.loaded()
        assert deliver(share) == [(0, 2, 1)]
        scene.led.append_marker(1, 0, 0, False)
        scene.led.append_marker(2, 0, 0, True)
        assert deliver(share) == [(7, 10, 1)], "the committed one, and the markers, which clients acknowledge as gaps"
        await (acknowledge(share, 0, 2, ACCEPT) or settle())
        assert share.window is not None
        assert share.window.start_offset == 7

    run(scenario, share_isolation_level="read_committed")


def test_records_of_transactions_are_delivered_at_once_without_read_committed() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(4, producer=1)
        assert deliver(await scene.loaded()) == [(0, 3, 1)]

    run(scenario)


def test_long_runs_of_aborted_batches_are_passed_in_one_fetch() -> None:
    async def scenario(scene: ShareScene) -> None:
        for number in range(5):
            scene.append(1, producer=1, sequence=number)
        scene.led.append_marker(1, 0, 0, False)
        scene.append(1)
        share = await scene.loaded()
        found = deliver(share, most=1)
        assert found == [(5, 5, 1)], "the marker"
        assert deliver(share, most=1) == [(6, 6, 1)]

    run(scenario, share_isolation_level="read_committed")


def test_what_compaction_has_removed_since_it_was_released_is_passed() -> None:
    async def scenario(scene: ShareScene) -> None:
        for _ in range(6):
            scene.append(1, key=b"k")
            scene.append(1, key=b"k")
        share = await scene.loaded()
        assert deliver(share)[0][0] == 0
        while deliver(share):
            pass
        share.release("m1")
        scene.led.log.flush()
        assert compact(scene.files, scene.led.log, scene.clock.now_ms()) is not None
        left = scene.led.log.read(Offset(0), 1 << 20, up_to=scene.led.high_watermark, at_least_one=True)
        [first, *_] = hop(left.file, left.position, left.position + left.size)  # type: ignore[arg-type]
        assert first.base_offset > 0, "the pass has removed something"
        assert deliver(share, "m2")[0][0] == first.base_offset
        assert share.window is not None
        assert share.window.start_offset == first.base_offset

    run(scenario, TopicConfig(cleanup_policy=("compact",), segment_bytes=200))


def test_the_options_of_the_group_count_when_they_change() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(5)
        share = await scene.loaded()
        deliver(share)
        scene.image = scene.image.with_group_config(GROUP, {"share.delivery.count.limit": "2"})
        for _ in range(2):
            await (acknowledge(share, 0, 4, RELEASE) or settle())
            deliver(share)
        assert share.window is not None
        assert share.window.start_offset == 5

    run(scenario)


# Writing.


def test_acknowledgements_of_one_turn_of_the_loop_are_one_write() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share, most=500)
        waiting = [acknowledge(share, offset, offset, ACCEPT) for offset in range(10)]
        assert [await one for one in waiting if one is not None] == [None] * 10
        assert scene.persister.writes == [ShareState(0, 3, 10, 0, [])]

    run(scenario)


def test_what_arrives_during_a_write_is_in_the_next_one() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        scene.persister.permits = asyncio.Semaphore(0)
        first = acknowledge(share, 0, 0, ACCEPT)
        await settle()
        second, third = acknowledge(share, 1, 1, ACCEPT), acknowledge(share, 3, 3, REJECT)
        await settle()
        assert first is not None
        assert second is not None
        assert third is not None
        scene.persister.permits.release()
        await first
        assert not second.done()
        scene.persister.permits.release()
        assert [await second, await third] == [None, None]
        assert [write.start_offset for write in scene.persister.writes] == [1, 2]

    run(scenario)


def test_a_failed_write_gives_the_records_back_to_the_member() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available, "moves")]
        written = acknowledge(share, 0, 9, ACCEPT)
        assert written is not None
        error = await written
        assert error is not None
        assert error.code is ErrorCode.coordinator_not_available
        assert deliver(share, "m2") == []
        again = acknowledge(share, 0, 9, ACCEPT)
        assert again is not None
        assert await again is None
        assert scene.persister.writes == [ShareState(0, 3, 10, 0, [])]

    run(scenario)


def test_a_lock_that_expires_during_a_write_that_fails_wakes_the_fetches_that_wait() -> None:
    """KAFKA-19476."""

    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        scene.persister.permits = asyncio.Semaphore(0)
        written = acknowledge(share, 0, 9, ACCEPT)
        await settle()
        await scene.pass_ms(LOCK_MS)
        delayed = delayed_on(share)
        assert deliver(share, "m2") == []
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        scene.persister.permits.release()
        assert written is not None
        assert await written is not None
        assert delayed.is_woken
        assert deliver(share, "m2") == [(0, 9, 2)]

    run(scenario)


@pytest.mark.parametrize("code", [ErrorCode.fenced_leader_epoch, ErrorCode.fenced_state_epoch])
def test_a_fenced_write_ends_the_share_partition(code: ErrorCode) -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        delayed = delayed_on(share)
        scene.persister.failures = [KafkaError(code)]
        written = acknowledge(share, 0, 9, ACCEPT)
        assert written is not None
        error = await written
        assert error is not None
        assert error.code is ErrorCode.not_leader_or_follower
        assert delayed.is_woken
        assert (await scene.loaded()) is not share

    run(scenario)


def test_what_was_released_without_a_successful_write_is_in_the_next_write() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        await scene.pass_ms(LOCK_MS)
        assert scene.persister.writes == []
        assert deliver(share, "m2") == [(0, 9, 2)]
        await (acknowledge(share, 9, 9, ACCEPT, member="m2") or settle())
        [write] = scene.persister.writes
        assert write.batches == [StateBatch(0, 8, AVAILABLE, 2), StateBatch(9, 9, ACKNOWLEDGED, 2)]

    run(scenario)


# Locks.


def test_an_expired_lock_makes_records_available_and_is_written() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        delayed = delayed_on(share)
        await scene.pass_ms(LOCK_MS - 1)
        assert not delayed.is_woken
        await scene.pass_ms(1)
        assert delayed.is_woken
        assert scene.persister.writes == [ShareState(0, 3, 0, 0, [StateBatch(0, 9, AVAILABLE, 1)])]
        assert deliver(share, "m2") == [(0, 9, 2)]
        await scene.pass_ms(LOCK_MS)
        assert deliver(share, "m1") == [(0, 9, 3)]

    run(scenario)


def test_later_locks_expire_later_and_renewed_ones_later_still() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(5)
        share = await scene.loaded()
        deliver(share)
        await scene.pass_ms(10_000)
        scene.append(5)
        deliver(share)
        await scene.pass_ms(10_000)
        assert acknowledge(share, 0, 1, RENEW) is None
        await scene.pass_ms(10_000)
        assert deliver(share, "m2") == [(2, 4, 2)]
        await scene.pass_ms(10_000)
        assert deliver(share, "m2") == [(5, 9, 2)]
        await scene.pass_ms(10_000)
        assert deliver(share, "m2") == [(0, 1, 2)]

    run(scenario)


def test_a_lock_expires_although_it_was_being_acknowledged_at_the_last_check() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(5)
        share = await scene.loaded()
        deliver(share)
        await scene.pass_ms(10_000)
        scene.append(5)
        deliver(share)
        scene.persister.permits = asyncio.Semaphore(0)
        acknowledge(share, 5, 9, ACCEPT)
        await scene.pass_ms(LOCK_MS - 10_000)
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        scene.persister.permits.release()
        await settle()
        assert deliver(share, "m2") == [(0, 4, 2)], "the lock of the other ones has not expired"
        await scene.pass_ms(10_000)
        assert deliver(share, "m2") == [(5, 9, 2)]

    run(scenario)


def test_the_start_follows_the_log_start() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(5)
        scene.append(5)
        share = await scene.loaded()
        deliver(share)
        scene.led.log.delete_records_before(Offset(7))
        written = acknowledge(share, 0, 9, RELEASE)
        assert written is not None
        assert await written is None
        assert scene.persister.writes == [ShareState(0, 3, 7, 0, [StateBatch(7, 9, AVAILABLE, 1)])]
        assert deliver(share) == [(7, 9, 2)]

    run(scenario)


def test_a_shorter_lock_expires_before_a_longer_one_that_began_earlier() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(5)
        share = await scene.loaded()
        deliver(share)
        scene.image = scene.image.with_group_config(GROUP, {"share.record.lock.duration.ms": "15000"})
        scene.append(5)
        deliver(share)
        await scene.pass_ms(15_000)
        assert deliver(share, "m2") == [(5, 9, 2)]
        await scene.pass_ms(15_000)
        assert deliver(share, "m2") == [(0, 4, 2), (5, 9, 3)]

    run(scenario)


# The end.


def test_a_change_of_the_leader_ends_it_and_wakes_the_fetches_that_wait() -> None:
    """KAFKA-19567."""

    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        scene.persister.permits = asyncio.Semaphore(0)
        first = acknowledge(share, 0, 0, ACCEPT)
        await settle()
        second = acknowledge(share, 1, 1, ACCEPT)
        delayed = delayed_on(share, scene.led)
        scene.lead(4, leader=TWO)
        assert delayed.is_woken
        assert share.error is not None
        assert share.error.code is ErrorCode.not_leader_or_follower
        assert second is not None
        assert (await second) is share.error, "it was not begun to be written"
        scene.persister.permits.release()
        assert first is not None
        assert await first is None, "it was written before the next leader has read the state"
        scene.lead(5)
        assert (await scene.loaded()).leader_epoch == 5

    run(scenario)


def test_a_partition_that_leads_again_in_a_new_epoch_reads_the_state_again() -> None:
    async def scenario(scene: ShareScene) -> None:
        share = await scene.loaded()
        scene.lead(3)
        assert scene.find() is share, "the same epoch"
        scene.lead(4)
        assert share.error is not None
        assert (await scene.loaded()) is not share

    run(scenario)


def test_deliveries_go_on_where_the_last_one_ended_over_the_ends_of_segments() -> None:
    """The place of the next batch is remembered, unless it is in the next segment."""

    async def scenario(scene: ShareScene) -> None:
        for _ in range(40):
            scene.append(3)
        assert len(scene.led.log.segments) > 5
        share = await scene.loaded()
        found = [deliver(share, most=3 + 3 * (turn % 3)) for turn in range(18)]
        ranges = [(first, last) for acquired in found for first, last, _ in acquired]
        assert [offset for first, last in ranges for offset in range(first, last + 1)] == list(range(ranges[-1][1] + 1))
        assert ranges[-1][1] > 60

    run(scenario, TopicConfig(segment_bytes=700))
