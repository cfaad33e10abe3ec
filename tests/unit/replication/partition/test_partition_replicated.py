"""A partition with several replicas: what is acknowledged when, and what happens when leadership changes hands."""

import asyncio
from uuid import uuid4

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.metadata.model import PartitionRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
REPLICAS = (ONE, TWO, THREE)
BATCH = build_batch([(None, b"x" * 100, -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)


def record(isr=REPLICAS, leader=ONE, epoch=3, replicas=REPLICAS):
    return PartitionRecord(replicas, isr, leader, LeaderEpoch(epoch))


class Replica:
    """One broker's copy, and how a follower's fetch goes between two of them, without a network."""

    def __init__(self, broker=ONE, files=None, high_watermark=0, **config):
        self.broker = broker
        self.clock = ManualClock()
        directory = LogDirectory(files or MemoryFiles(), "/data", self.clock)
        directory.open()
        log = directory.log(TopicPartition("t", 0), TopicConfig(**config), uuid4())
        self.partition = Partition(log, log.topic_id, LeaderEpoch(0), self.clock, None, Offset(high_watermark))
        self.partition.follow(LeaderEpoch(-1))

    def fetch_from(self, leader, count=100):
        """Rounds of fetches until there is nothing new; which epochs diverged on the way."""
        mine, theirs = self.partition, leader.partition
        diverged = []
        for _ in range(count):
            offset = mine.log.log_end_offset
            diverging = theirs.diverging(offset, mine.log.latest_epoch)
            if diverging is not None:
                diverged.append(diverging)
                epoch, end = diverging
                own_epoch, own_end = mine.log.end_offset_for_epoch(LeaderEpoch(epoch))
                mine.truncate_to(Offset(min(end, own_end) if own_epoch >= 0 else end))
                continue
            theirs.follower_fetched(self.broker, offset, -1)
            found = theirs.read(offset, 1 << 20, up_to=theirs.log.log_end_offset, at_least_one=True)
            records = found.file.read(found.position, found.size) if found.file is not None else b""
            mine.append_fetched(memoryview(records), theirs.high_watermark, theirs.log.log_start_offset)
            if not records:
                return diverged
        raise AssertionError("the follower does not come to an end")


def run(scenario):
    async def whole():
        await scenario()

    asyncio.run(asyncio.wait_for(whole(), 60))


def led(isr=REPLICAS, **config):
    leader = Replica(**config)
    leader.partition.lead(ONE, record(isr))
    return leader


def test_acks_all_waits_for_every_member_of_the_isr():
    async def scenario():
        leader, second, third = led(), Replica(TWO), Replica(THREE)
        _, committed = leader.partition.append(BATCH, HEADER)
        second.fetch_from(leader)
        assert not committed.done()
        assert leader.partition.high_watermark == 0
        third.fetch_from(leader)
        await committed
        assert leader.partition.high_watermark == 1

    run(scenario)


def test_acks_one_waits_for_nobody_but_readers_do():
    async def scenario():
        leader = led()
        appended, committed = leader.partition.append(BATCH, HEADER, acks_all=False)
        assert committed is None
        assert appended.base_offset == 0
        assert leader.partition.high_watermark == 0

    run(scenario)


def test_too_few_in_sync_replicas_refuse_before_anything_is_written():
    async def scenario():
        leader = led(isr=(ONE,), min_insync_replicas=2)
        with pytest.raises(KafkaError) as refusal:
            leader.partition.append(BATCH, HEADER)
        assert refusal.value.code is ErrorCode.not_enough_replicas
        assert leader.partition.log.log_end_offset == 0
        leader.partition.append(BATCH, HEADER, acks_all=False)
        assert leader.partition.log.log_end_offset == 1

    run(scenario)


def test_no_more_in_sync_replicas_are_asked_for_than_there_are():
    async def scenario():
        leader = Replica(min_insync_replicas=5)
        leader.partition.lead(ONE, record((ONE, TWO), replicas=(ONE, TWO)))
        leader.partition.append(BATCH, HEADER)

    run(scenario)


def test_an_isr_that_shrank_meanwhile_is_told_after_the_append():
    async def scenario():
        leader = led(isr=(ONE, TWO), min_insync_replicas=2)
        _, committed = leader.partition.append(BATCH, HEADER)
        leader.partition.lead(ONE, record((ONE,)))
        assert leader.partition.high_watermark == 1
        with pytest.raises(KafkaError) as refusal:
            await committed
        assert refusal.value.code is ErrorCode.not_enough_replicas_after_append

    run(scenario)


def test_a_leader_that_is_deposed_refuses_what_waits_and_what_comes():
    async def scenario():
        leader = led()
        _, committed = leader.partition.append(BATCH, HEADER)
        leader.partition.follow(LeaderEpoch(4))
        with pytest.raises(KafkaError) as refusal:
            await committed
        assert refusal.value.code is ErrorCode.not_leader_or_follower
        for refused in (
            lambda: leader.partition.append(BATCH, HEADER),
            lambda: leader.partition.append_marker(7, 0, 0, True),
            leader.partition.committed,
        ):
            with pytest.raises(KafkaError) as refusal:
                refused()
            assert refusal.value.code is ErrorCode.not_leader_or_follower

    run(scenario)


def test_a_fetch_of_a_follower_is_woken_by_the_append_and_not_by_the_high_watermark():
    async def scenario():
        leader = led()
        delayed, consumer = DelayedFetch(1), DelayedFetch(1)
        delayed.watch(leader.partition.tail)
        consumer.watch(leader.partition)
        waiting = asyncio.ensure_future(delayed.wait(10_000))
        reading = asyncio.ensure_future(consumer.wait(10_000))
        await asyncio.sleep(0)
        leader.partition.append(BATCH, HEADER)
        await waiting
        assert not reading.done()
        for follower in (Replica(TWO), Replica(THREE)):
            follower.fetch_from(leader)
        await reading

    run(scenario)


def test_what_a_deposed_leader_had_alone_is_taken_back():
    async def scenario():
        old, new = led(), Replica(TWO)
        old.partition.append(BATCH, HEADER)
        new.fetch_from(old)
        old.partition.append(BATCH, HEADER)  # nobody else has this one
        old.partition.append(BATCH, HEADER)
        new.partition.lead(TWO, record((TWO, THREE), leader=TWO, epoch=4))
        new.partition.append(BATCH, HEADER)
        old.partition.follow(LeaderEpoch(4))
        assert old.fetch_from(new) == [(3, 1)]
        assert old.partition.log.log_end_offset == 2
        same = [r.partition.read(Offset(0), 1 << 20, up_to=Offset(2), at_least_one=True) for r in (old, new)]
        assert len({found.file.read(found.position, found.size) for found in same}) == 1

    run(scenario)


def test_an_epoch_in_which_nothing_was_written_does_not_keep_a_follower_from_going_on():
    async def scenario():
        old, new = led(), Replica(TWO)
        old.partition.append(BATCH, HEADER)
        new.fetch_from(old)
        old.partition.lead(ONE, record(epoch=4))
        new.partition.lead(TWO, record((TWO, THREE), leader=TWO, epoch=5))
        new.partition.append(BATCH, HEADER)
        old.partition.follow(LeaderEpoch(5))
        old.fetch_from(new)
        assert old.partition.log.log_end_offset == 2

    run(scenario)


def test_histories_that_parted_twice_meet_again_at_their_last_common_batch():
    async def scenario():
        one, two = led(), Replica(TWO)
        one.partition.append(BATCH, HEADER)
        two.fetch_from(one)
        one.partition.append(BATCH, HEADER)  # epoch 3 at offset 1, only on one
        two.partition.lead(TWO, record(leader=TWO, epoch=4))
        two.partition.append(BATCH, HEADER)  # epoch 4 at offset 1, only on two
        two.partition.append(BATCH, HEADER)
        one.partition.lead(ONE, record(epoch=5))  # one never heard of epoch 4
        one.partition.append(BATCH, HEADER)
        two.partition.follow(LeaderEpoch(5))
        two.fetch_from(one)
        assert two.partition.log.log_end_offset == one.partition.log.log_end_offset == 3

    run(scenario)


def test_a_new_leader_says_that_it_does_not_know_yet_what_was_committed():
    async def scenario():
        old, new, third = led(), Replica(TWO), Replica(THREE)
        old.partition.append(BATCH, HEADER)
        new.fetch_from(old, 100)
        third.fetch_from(old)
        new.partition.lead(TWO, record((TWO, THREE), leader=TWO, epoch=4))
        with pytest.raises(KafkaError) as refusal:
            new.partition.check_knows_committed()
        assert refusal.value.code is ErrorCode.offset_not_available
        third.partition.follow(LeaderEpoch(4))
        third.fetch_from(new)
        new.partition.check_knows_committed()
        assert new.partition.high_watermark == 1

    run(scenario)


def test_a_follower_takes_the_marks_of_its_leader():
    async def scenario():
        leader, follower = led(isr=(ONE, TWO)), Replica(TWO)
        for _ in range(3):
            leader.partition.append(BATCH, HEADER)
        follower.fetch_from(leader)
        assert follower.partition.high_watermark == 3
        leader.partition.log.delete_records_before(Offset(2))
        follower.fetch_from(leader)
        assert follower.partition.log.log_start_offset == 2

    run(scenario)


def test_a_broker_that_holds_no_replica_moves_nothing():
    async def scenario():
        leader = led(isr=(ONE,))
        with pytest.raises(KafkaError):
            leader.partition.follower_fetched(BrokerId(9), Offset(0), -1)

    run(scenario)


def test_one_that_caught_up_is_reported_until_it_is_a_member():
    async def scenario():
        leader, follower = led(isr=(ONE,)), Replica(TWO)
        reported = []
        leader.partition.on_follower_caught_up = reported.append
        leader.partition.append(BATCH, HEADER)
        follower.fetch_from(leader)
        assert reported
        assert set(reported) == {leader.partition}
        leader.partition.lead(ONE, record((ONE, TWO)))
        reported.clear()
        follower.fetch_from(leader)
        assert not reported

    run(scenario)


def test_a_batch_that_is_sent_again_waits_for_its_first_copy():
    async def scenario():
        leader = led(isr=(ONE, TWO))
        numbered = [
            build_batch([(None, b"v", -1, ())], producer_id=7, producer_epoch=0, base_sequence=n) for n in range(2)
        ]
        headers = [check_produced(batch, max_message_bytes=1000) for batch in numbered]
        _, first = leader.partition.append(numbered[0], headers[0])
        _, second = leader.partition.append(numbered[1], headers[1])
        repeated, again = leader.partition.append(numbered[0], headers[0])
        assert repeated.is_duplicate
        assert again is not None
        leader.partition.follower_fetched(TWO, Offset(1), -1)
        await asyncio.gather(first, again)
        assert not second.done()

    run(scenario)
