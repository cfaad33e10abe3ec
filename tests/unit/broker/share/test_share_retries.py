"""Retries with a delay, dead letters and records that are too old, in a share partition on a log in memory."""

import logging

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import Offset
from skep.broker.share.share_partition import SharePartition
from skep.coordination.share import share_window
from skep.coordination.share.share_state import DeadLetters, DeliveryState, Reason, ShareState, StateBatch
from skep.replication.partition.delayed_fetch import DelayedFetch
from tests.unit.broker.share.scene import GROUP, LOCK_MS, ShareScene, acknowledge, deliver, run, settle

ACCEPT, RELEASE, REJECT = 1, 2, 3
AVAILABLE, ARCHIVING, ARCHIVED = DeliveryState.AVAILABLE, DeliveryState.ARCHIVING, DeliveryState.ARCHIVED
LADDER = {"skep_share_retry_backoff": "1s,5s"}
DEAD = {"errors_deadletterqueue_topic_name": "dead"}


class Queue:
    """Stands for the writer of dead letters, and only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[SharePartition] = []

    def added(self, share: SharePartition) -> None:
        self.told.append(share)


def with_queue(scene: ShareScene) -> Queue:
    queue = Queue()
    scene.shares.dead_letters = queue
    return queue


def waits(share: SharePartition) -> DelayedFetch:
    delayed = DelayedFetch(1)
    delayed.watch(share)
    return delayed


# The ladder.


def test_a_released_record_comes_again_at_its_time_and_wakes_the_fetch_that_waits() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(3)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 1, 1, RELEASE) or settle())
        not_before_ms = scene.clock.now_ms() + 1_000
        assert scene.persister.writes[-1].batches == [StateBatch(1, 1, AVAILABLE, 1, 1, not_before_ms)]
        await scene.pass_ms(999)
        delayed = waits(share)
        assert deliver(share) == []
        await scene.pass_ms(1)
        assert delayed.is_woken
        assert deliver(share) == [(1, 1, 2)]

    run(scenario, **LADDER)


def test_a_record_whose_lock_expires_waits_too() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(1)
        share = await scene.loaded()
        deliver(share)
        await scene.pass_ms(LOCK_MS)
        assert deliver(share) == []
        await scene.pass_ms(1_000)
        assert deliver(share) == [(0, 0, 2)]

    run(scenario, **LADDER)


def test_what_a_member_that_is_gone_held_comes_at_once() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(1)
        share = await scene.loaded()
        deliver(share)
        share.release("m1")
        assert deliver(share, "m2") == [(0, 0, 2)]

    run(scenario, **LADDER)


def test_a_new_leader_waits_for_the_time_that_it_finds() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(2)
        not_before_ms = scene.clock.now_ms() + 60_000
        scene.persister.state = ShareState(0, 2, 0, batches=[StateBatch(0, 0, AVAILABLE, 2, 2, not_before_ms)])
        share = await scene.loaded()
        assert deliver(share) == [(1, 1, 1)]
        await (acknowledge(share, 1, 1, ACCEPT) or settle())
        for _ in range(6):
            assert deliver(share) == []
            await scene.pass_ms(10_000)
        assert deliver(share) == [(0, 0, 3)]

    run(scenario, **LADDER)


def test_a_clock_that_is_set_back_delays_and_one_that_is_set_forward_is_noticed() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(1)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 0, RELEASE) or settle())
        scene.clock._now_ms -= 60_000
        await scene.pass_ms(5_000)
        assert deliver(share) == [], "never early by the clock of the broker"
        delayed = waits(share)
        scene.clock._now_ms += 120_000
        await scene.pass_ms(10_000)
        assert delayed.is_woken
        assert deliver(share) == [(0, 0, 2)]

    run(scenario, **LADDER)


def test_a_member_sets_the_delay_of_one_record() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(2)
        share = await scene.loaded()
        deliver(share)
        scene.shares.delay(GROUP, scene.topic_id, 0, 1, 90_000, member="m1", text="later")
        await (acknowledge(share, 0, 1, RELEASE) or settle())
        assert deliver(share) == [(0, 0, 2)]
        await scene.pass_ms(LOCK_MS - 1)
        await scene.pass_ms(60_000)
        assert deliver(share, "m2") == [(0, 0, 3)]
        await scene.pass_ms(1)
        assert deliver(share, "m2") == [(1, 1, 2)]

    run(scenario)


@pytest.mark.parametrize("delay_ms", [-1, 1 << 62])
def test_a_delay_out_of_range_is_refused(delay_ms: int) -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(1)
        share = await scene.loaded()
        deliver(share)
        with pytest.raises(KafkaError) as refused:
            share.delay(0, delay_ms)
        assert refused.value.code is ErrorCode.invalid_request
        with pytest.raises(KafkaError) as refused:
            share.delay(0, 1_000, member="m2")
        assert refused.value.code is ErrorCode.invalid_record_state

    run(scenario)


def test_too_many_records_that_wait_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(100)
        scene.append(100)
        share = await scene.loaded()
        deliver(share, most=100)
        await (acknowledge(share, 0, 99, RELEASE) or settle())
        with caplog.at_level(logging.WARNING):
            assert deliver(share) == []
            assert deliver(share) == []
        assert caplog.text.count("skep.share.max.waiting.records") == 1
        await scene.pass_ms(1_000)
        assert deliver(share, most=100) == [(0, 99, 2)]

    run(scenario, **LADDER, skep_share_max_waiting_records="100")


# Dead letters.


def test_a_dead_letter_is_announced_when_its_state_is_written_and_archived_when_it_is_copied() -> None:
    async def scenario(scene: ShareScene) -> None:
        queue = with_queue(scene)
        scene.append(3)
        share = await scene.loaded()
        deliver(share)
        share.delay(0, None, text="bad json")
        rejected = acknowledge(share, 0, 0, REJECT)
        assert share.dead_letters() == []
        await (rejected or settle())
        assert queue.told == [share]
        assert share.dead_letters() == [DeadLetters(0, 0, Reason.REJECTED, 1, "bad json")]
        assert scene.persister.writes[-1] == ShareState(
            0, 3, 0, 0, [StateBatch(0, 0, ARCHIVING, 1, 0, 0, Reason.REJECTED)]
        )
        share.dead_letters_written([(0, 0)])
        await settle()
        assert scene.persister.writes[-1].start_offset == 1
        assert share.dead_letters() == []

    run(scenario, **DEAD)


def test_what_expires_for_the_last_time_is_no_dead_letter_before_it_is_written() -> None:
    async def scenario(scene: ShareScene) -> None:
        queue = with_queue(scene)
        scene.append(1)
        scene.persister.state = ShareState(0, 0, 0, batches=[StateBatch(0, 0, AVAILABLE, 4)])
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        await scene.pass_ms(LOCK_MS)
        assert share.window is not None
        assert share.window.archiving == 1
        assert (queue.told, share.dead_letters()) == ([], [])
        scene.append(1)
        deliver(share)
        await (acknowledge(share, 1, 1, ACCEPT) or settle())
        assert queue.told == [share]
        assert share.dead_letters() == [DeadLetters(0, 0, Reason.LIMIT, 5)]

    run(scenario, **DEAD)


def test_a_dead_letter_whose_state_was_not_written_waits_for_no_other_request() -> None:
    async def scenario(scene: ShareScene) -> None:
        queue = with_queue(scene)
        scene.append(1)
        scene.persister.state = ShareState(0, 0, 0, batches=[StateBatch(0, 0, AVAILABLE, 4)])
        share = await scene.loaded()
        deliver(share)
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available) for _ in range(2)]
        await scene.pass_ms(LOCK_MS)
        assert share.dead_letters() == []
        for _ in range(6):
            await scene.pass_ms(5_000)
        assert queue.told == [share]
        assert share.dead_letters() == [DeadLetters(0, 0, Reason.LIMIT, 5)]

    run(scenario, **DEAD)


def test_dead_letters_found_in_the_state_are_announced_and_keep_the_share_partition() -> None:
    async def scenario(scene: ShareScene) -> None:
        queue = with_queue(scene)
        batch = StateBatch(0, 1, ARCHIVING, 5, 0, 0, Reason.LIMIT)
        scene.persister.state = ShareState(0, 0, 0, batches=[batch])
        scene.append(3)
        share = await scene.loaded()
        assert queue.told == [share]
        scene.shares.group_unused(GROUP)
        assert share.error is None, "the copies are not written yet"
        share.dead_letters_written([(0, 1)])
        await settle()
        assert scene.persister.writes[-1].start_offset == 2
        assert share.error is not None

    run(scenario, **DEAD)


def test_a_group_that_gives_up_its_dead_letter_topic_goes_on() -> None:
    async def scenario(scene: ShareScene) -> None:
        with_queue(scene)
        scene.append(1)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 0, REJECT) or settle())
        scene.image = scene.image.with_group_config(GROUP, {})
        assert deliver(share) == []
        await settle()
        assert scene.persister.writes[-1].start_offset == 1

    run(scenario, **DEAD)


def test_a_broker_without_a_dead_letter_queue_archives_at_once() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(1)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 0, REJECT) or settle())
        assert scene.persister.writes[-1].start_offset == 1

    run(scenario, **DEAD)


def test_a_record_that_is_deleted_while_it_waits_gets_a_dead_letter_once_that_is_written() -> None:
    async def scenario(scene: ShareScene) -> None:
        queue = with_queue(scene)
        scene.append(3)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 1, RELEASE) or settle())
        await (acknowledge(share, 2, 2, ACCEPT) or settle())
        scene.led.log.delete_records_before(Offset(3))
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        assert deliver(share) == []
        await settle()
        assert (queue.told, share.dead_letters()) == ([], [])
        await scene.pass_ms(1_000)
        assert queue.told == [share]
        assert share.dead_letters() == [DeadLetters(0, 1, Reason.DELETED, 1)]
        assert scene.persister.writes[-1].batches == [StateBatch(0, 1, ARCHIVING, 1, 1, 0, Reason.DELETED)]

    run(scenario, **LADDER, **DEAD)


def test_very_many_records_that_are_deleted_are_passed_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_window, "RUNS_AT_ONCE", 1)

    async def scenario(scene: ShareScene) -> None:
        with_queue(scene)
        scene.append(5)
        share = await scene.loaded()
        deliver(share)
        for offset in range(5):
            await (acknowledge(share, offset, offset, RELEASE if offset % 2 == 0 else ACCEPT) or settle())
        scene.led.log.delete_records_before(Offset(5))
        scene.append(2)
        assert deliver(share) == [], "two of the three are not given up yet"
        delayed = waits(share)
        for _ in range(3):
            await scene.pass_ms(1)
        assert delayed.is_woken
        assert deliver(share) == [(5, 6, 1)]
        assert [one.first for one in share.dead_letters()] == [0, 2, 4]

    run(scenario, **LADDER, **DEAD)


# Records that are too old.


def test_records_that_are_too_old_are_passed_and_that_is_written() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(5)
        await scene.pass_ms(60_001)
        scene.append(5)
        share = await scene.loaded()
        assert deliver(share) == [(5, 9, 1)]
        await settle()
        assert scene.persister.writes == [ShareState(0, 3, 5, 0, [])]

    run(scenario, skep_share_record_ttl_ms="60000")


def test_records_that_are_too_old_go_to_the_dead_letter_topic() -> None:
    async def scenario(scene: ShareScene) -> None:
        queue = with_queue(scene)
        scene.append(5)
        await scene.pass_ms(60_001)
        share = await scene.loaded()
        assert deliver(share) == []
        await settle()
        assert queue.told == [share]
        assert share.dead_letters() == [DeadLetters(0, 4, Reason.EXPIRED, 0)]

    run(scenario, skep_share_record_ttl_ms="60000", **DEAD)


# Opening again.


def test_finished_offsets_are_opened_again_below_the_start_and_inside_the_window() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(10)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 4, ACCEPT) or settle())
        await (acknowledge(share, 7, 8, REJECT) or settle())
        held = [(5, 6), (9, 9)]
        assert await share.reopen([(1, 1), (3, 7), (9, 9), (20, 30)]) == 4
        assert scene.persister.writes[-1] == ShareState(
            0,
            3,
            1,
            2,
            [
                StateBatch(1, 1, AVAILABLE, 0),
                StateBatch(2, 2, ARCHIVED, 0),
                StateBatch(3, 4, AVAILABLE, 0),
                StateBatch(5, 6, AVAILABLE, 1),
                StateBatch(7, 7, AVAILABLE, 0),
                StateBatch(8, 8, ARCHIVED, 1),
                StateBatch(9, 9, AVAILABLE, 1),
            ],
            generation=1,
        )
        assert deliver(share, "m2") == [(1, 1, 1), (3, 4, 1), (7, 7, 1)]
        for first, last in held:
            assert await (acknowledge(share, first, last, ACCEPT) or settle()) is None, "its lock was kept"
        assert scene.persister.writes[-1].generation == 1
        assert scene.persister.writes[-1].start_offset == 1

    run(scenario)


def test_acknowledgements_that_wait_are_in_the_write_that_opens_offsets_again() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(4)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 0, ACCEPT) or settle())
        accepted = acknowledge(share, 1, 1, ACCEPT)
        assert await share.reopen([(0, 3)]) == 1
        assert accepted is not None
        assert accepted.done()
        assert [batch[:4] for batch in scene.persister.writes[-1].batches] == [
            (0, 0, AVAILABLE, 0),
            (1, 1, DeliveryState.ACKNOWLEDGED, 1),
            (2, 3, AVAILABLE, 1),
        ]
        assert len(scene.persister.writes) == 2

    run(scenario)


def test_what_a_write_fails_to_open_is_opened_by_the_next_one() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(2)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 1, ACCEPT) or settle())
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        with pytest.raises(KafkaError):
            await share.reopen([(0, 1)])
        assert deliver(share) == []
        assert await share.reopen([(0, 0)]) == 1
        assert deliver(share) == [(0, 1, 1)]
        assert scene.persister.writes[-1].generation == 2, "the first one may arrive later"

    run(scenario)


def test_after_a_write_that_may_still_replace_the_state_the_next_one_replaces_it() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(4)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 1, ACCEPT) or settle())
        scene.persister.failures = [KafkaError(ErrorCode.request_timed_out)] * 2
        with pytest.raises(KafkaError):
            await share.reopen([(0, 1)])
        scene.shares.group_unused(GROUP)
        assert share.error is None, "what is read now may not last"
        assert await (acknowledge(share, 2, 2, ACCEPT) or settle()) is not None
        assert await (acknowledge(share, 2, 2, ACCEPT) or settle()) is None
        assert scene.persister.writes[-1] == ShareState(
            0,
            3,
            0,
            1,
            [
                StateBatch(0, 1, AVAILABLE, 0),
                StateBatch(2, 2, DeliveryState.ACKNOWLEDGED, 1),
                StateBatch(3, 3, AVAILABLE, 1),
            ],
            3,
        )
        await settle()
        assert share.error is not None, "the group has no member here"

    run(scenario)


def test_another_generation_means_that_the_offsets_were_opened() -> None:
    """Which a redrive concludes when it asks again after a failure."""

    async def scenario(scene: ShareScene) -> None:
        scene.append(4)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 1, REJECT) or settle())
        generation = share.generation
        scene.persister.failures = [KafkaError(ErrorCode.coordinator_not_available)]
        with pytest.raises(KafkaError):
            await share.reopen([(0, 1)])
        assert share.generation == generation
        assert await (acknowledge(share, 2, 2, ACCEPT) or settle()) is None
        assert share.generation != generation
        assert deliver(share, "m2") == [(0, 1, 1)]

    run(scenario)


def test_a_share_partition_that_ends_meanwhile_tells_those_who_wait() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(2)
        share = await scene.loaded()
        deliver(share)
        await (acknowledge(share, 0, 1, ACCEPT) or settle())
        scene.persister.failures = [KafkaError(ErrorCode.fenced_state_epoch)]
        with pytest.raises(KafkaError) as refused:
            await share.reopen([(0, 1)])
        assert refused.value.code is ErrorCode.not_leader_or_follower
        assert share.error is not None
        with pytest.raises(KafkaError):
            await share.reopen([(0, 1)])

    run(scenario)


@pytest.mark.parametrize("ranges", [[(5, 4)], [(-1, 3)], [(n, n) for n in range(10_001)]])
def test_ranges_that_are_none_or_too_many_are_refused(ranges: list[tuple[int, int]]) -> None:
    async def scenario(scene: ShareScene) -> None:
        share = await scene.loaded()
        with pytest.raises(KafkaError) as refused:
            await share.reopen(ranges)
        assert refused.value.code is ErrorCode.invalid_request

    run(scenario)


def test_nothing_to_open_writes_nothing_that_replaces() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.append(2)
        share = await scene.loaded()
        deliver(share)
        assert await share.reopen([(0, 1 << 62)]) == 0
        assert all(write.generation == 0 for write in scene.persister.writes)

    run(scenario)
