"""How a leader changes its ISR in the store, and what counts while it does not know what came of it."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication import isr_updater
from skep.replication.isr_updater import IsrUpdater
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
BATCH = build_batch([(None, b"x", -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)
REGISTRATION = 40


class Store:
    """The catalog of a store whose answers the test decides on."""

    def __init__(self, topic, partition):
        self.image = ClusterImage.of("c", [BrokerRecord(b, "h", 1, epoch=REGISTRATION) for b in (ONE, TWO, THREE)])
        self.topic = topic
        self.partition = partition
        self.failures = []
        self.forced = []
        self.committed_while_writing = []
        self.before_change = lambda: None  # what happens while the turn and the record are waited for

    async def change_topic(self, name, change, *, always_write=False):
        self.forced.append(always_write)
        self.before_change()
        changed = change(self.topic)
        in_sync = self.partition.in_sync
        self.committed_while_writing.append(in_sync and in_sync.committed_end(self.partition.log.log_end_offset))
        if self.failures:
            takes_place = self.failures.pop(0)
            if takes_place:
                self.topic = changed
            raise StoreUnavailable("away")
        self.topic = changed
        return changed


class Scene:
    def __init__(self, isr, epoch=3, leader=ONE):
        self.clock = ManualClock()
        directory = LogDirectory(MemoryFiles(), "/data", self.clock)
        directory.open()
        topic_id = uuid4()
        log = directory.log(TopicPartition("t", 0), TopicConfig(), topic_id)
        self.partition = Partition(log, topic_id, LeaderEpoch(0), self.clock, None, Offset(0))
        self.partition.follow(LeaderEpoch(-1))
        self.partition.lead(ONE, PartitionRecord((ONE, TWO, THREE), isr, ONE, LeaderEpoch(3)))
        stored = PartitionRecord((ONE, TWO, THREE), isr, leader, LeaderEpoch(epoch))
        self.store = Store(TopicRecord("t", topic_id, (stored,)), self.partition)
        config = CurrentConfig(BrokerConfig(cluster=ClusterConfig(replica_lag_time_max_ms=10_000)))
        self.changes = IsrUpdater(ONE, self.store, config, self.clock, self.ask_others)
        self.others_were_asked_about = set()
        self.partition.on_follower_caught_up = self.changes.check_soon
        self.partition.append(BATCH, HEADER, acks_all=False)

    async def fall_silent(self):
        """No follower has been heard of for too long, and the store is away."""
        self.clock.advance_ms(11_000)
        self.store.failures = [False] * 10_000
        await self.changes.check_lag([self.partition])

    async def ask_others(self, topics):
        self.others_were_asked_about.update(topics)

    @property
    def stored_isr(self):
        return self.store.topic.partitions[0].isr

    async def settle(self, condition):
        supervisor = Supervisor()
        supervisor.repeat(lambda: 0, self.changes.run_pending_checks)
        try:
            async with asyncio.timeout(30):
                while not condition():
                    await asyncio.sleep(0)
        finally:
            await supervisor.close()


def run(scenario):
    asyncio.run(scenario())


def test_a_follower_that_caught_up_joins_and_counts_from_the_moment_of_the_write():
    async def scenario():
        scene = Scene((ONE,))
        scene.partition.append(BATCH, HEADER)
        assert scene.partition.high_watermark == 2
        scene.partition.follower_fetched(TWO, Offset(2), REGISTRATION)
        scene.partition.append(BATCH, HEADER)  # committed by the leader alone; the follower has two
        scene.partition.follower_fetched(TWO, Offset(3), REGISTRATION)
        await scene.settle(lambda: TWO in scene.stored_isr)
        assert scene.stored_isr == (ONE, TWO)
        assert scene.partition.in_sync.isr == {ONE, TWO}
        assert not scene.partition.in_sync.is_proposing

    run(scenario)


def test_a_registration_that_is_not_the_one_that_fetched_does_not_join():
    async def scenario():
        scene = Scene((ONE,))
        scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION - 1)
        scene.partition.follower_fetched(THREE, Offset(1), REGISTRATION)
        await scene.settle(lambda: THREE in scene.stored_isr)
        assert scene.stored_isr == (ONE, THREE)

    run(scenario)


def test_a_broker_that_is_stopping_does_not_join():
    async def scenario():
        scene = Scene((ONE,))
        stopping = replace(scene.store.image.brokers[TWO], stopping=True)
        scene.store.image = scene.store.image.with_broker(stopping)
        scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        scene.partition.follower_fetched(THREE, Offset(1), REGISTRATION)
        await scene.settle(lambda: THREE in scene.stored_isr)
        assert scene.stored_isr == (ONE, THREE)

    run(scenario)


def test_one_that_fell_behind_goes():
    async def scenario():
        scene = Scene((ONE, TWO, THREE))
        scene.clock.advance_ms(11_000)
        scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        await scene.changes.check_lag([scene.partition])
        await scene.settle(lambda: THREE not in scene.stored_isr)
        assert scene.stored_isr == (ONE, TWO)
        assert scene.partition.high_watermark == 1

    run(scenario)


def test_a_follower_behind_what_was_committed_while_the_store_was_asked_does_not_join():
    async def scenario():
        scene = Scene((ONE, TWO))
        partition = scene.partition
        for follower in (TWO, THREE):
            partition.follower_fetched(follower, Offset(1), REGISTRATION)
        acknowledged = []

        def commit_another():
            acknowledged.append(partition.append(BATCH, HEADER)[1])
            partition.follower_fetched(TWO, Offset(2), REGISTRATION)

        scene.store.before_change = commit_another
        await scene.settle(lambda: scene.store.forced)
        assert acknowledged[0].done()
        assert acknowledged[0].exception() is None
        assert scene.stored_isr == (ONE, TWO), "broker 3 has less than was acknowledged"
        assert not partition.in_sync.is_proposing
        scene.store.before_change = lambda: None
        partition.follower_fetched(THREE, Offset(2), REGISTRATION)
        await scene.settle(lambda: THREE in scene.stored_isr)

    run(scenario)


def test_a_leader_that_is_deposed_while_the_store_is_asked_proposes_and_writes_nothing():
    async def scenario():
        for next_role in (
            lambda partition: partition.follow(LeaderEpoch(4)),
            lambda partition: partition.lead(ONE, PartitionRecord((ONE, TWO, THREE), (ONE,), ONE, LeaderEpoch(4))),
        ):
            scene = Scene((ONE,))
            before = scene.store.topic
            scene.store.before_change = lambda scene=scene, next_role=next_role: next_role(scene.partition)
            scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION)
            await scene.settle(lambda scene=scene: scene.store.forced)
            assert scene.store.topic == before
            assert scene.partition.in_sync is None or not scene.partition.in_sync.is_proposing

    run(scenario)


def test_what_was_decided_in_one_epoch_is_not_written_in_the_next_although_we_lead_again():
    async def scenario():
        scene = Scene((ONE, TWO, THREE))
        again = scene.store.topic.partitions[0].elected(ONE, (ONE, TWO, THREE))

        def lead_again():
            scene.store.topic = replace(scene.store.topic, partitions=(again,))
            scene.partition.lead(ONE, again)

        scene.store.before_change = lead_again
        scene.clock.advance_ms(11_000)
        await scene.changes.check_lag([scene.partition])
        await scene.settle(lambda: scene.store.forced)
        assert scene.stored_isr == (ONE, TWO, THREE), "in the new epoch they have not had the time to lag behind"

    run(scenario)


def test_a_bug_in_one_look_does_not_keep_the_next_from_coming():
    async def scenario():
        scene = Scene((ONE,))
        failures = [ZeroDivisionError()]

        def fail_once():
            if failures:
                raise failures.pop()

        scene.store.before_change = fail_once
        scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION)

        def recheck():
            if not failures:
                scene.changes.check_soon(scene.partition)
            return TWO in scene.stored_isr

        await scene.settle(recheck)
        assert not scene.partition.in_sync.is_proposing

    run(scenario)


def test_a_deposed_leader_writes_nothing():
    async def scenario():
        scene = Scene((ONE, TWO), epoch=4, leader=TWO)
        before = scene.store.topic
        scene.partition.follower_fetched(THREE, Offset(1), REGISTRATION)
        await scene.settle(lambda: scene.store.forced)
        assert scene.store.topic == before
        assert THREE not in scene.partition.in_sync.isr

    run(scenario)


def test_when_the_store_does_not_answer_both_sets_count_and_the_next_attempt_writes_for_sure(monkeypatch):
    monkeypatch.setattr(isr_updater, "RETRY_PAUSE_S", 0.001)

    async def scenario():
        for takes_place in (True, False):
            scene = Scene((ONE, TWO))
            scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION)
            assert scene.partition.high_watermark == 1
            scene.store.failures = [takes_place]
            scene.partition.follower_fetched(THREE, Offset(1), REGISTRATION)
            await scene.settle(lambda scene=scene: len(scene.store.forced) == 1)
            scene.partition.append(BATCH, HEADER, acks_all=False)
            scene.partition.follower_fetched(TWO, Offset(2), REGISTRATION)
            # Whether the third is a member is not known, so what it does not have is not committed.
            assert scene.partition.high_watermark == 1
            await scene.settle(lambda scene=scene: len(scene.store.forced) == 2)
            assert scene.store.forced == [False, True]
            assert not scene.partition.in_sync.is_proposing
            assert scene.partition.in_sync.isr == set(scene.stored_isr)

    run(scenario)


def test_a_leader_that_hears_neither_followers_nor_the_store_sends_acks_all_to_look_for_another(monkeypatch):
    monkeypatch.setattr(isr_updater, "RETRY_PAUSE_S", 0.001)

    async def scenario():
        scene = Scene((ONE, TWO))
        partition = scene.partition
        partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        _, waits = partition.append(BATCH, HEADER)
        await scene.fall_silent()
        await scene.settle(lambda: waits.done() and scene.others_were_asked_about == {"t"})
        assert waits.exception().code is ErrorCode.not_leader_or_follower
        with pytest.raises(KafkaError, match="neither the in-sync replicas nor the metadata store respond") as refused:
            partition.append(BATCH, HEADER)
        assert refused.value.code is ErrorCode.not_leader_or_follower
        assert partition.log.log_end_offset == 2, "refused before it was written: a retry adds no second copy"
        partition.append(BATCH, HEADER, acks_all=False)
        # The follower is heard again, the store is not: all that are in sync have it, so it can be promised.
        partition.follower_fetched(TWO, Offset(3), REGISTRATION)
        await scene.settle(lambda: not partition.in_sync.is_in_doubt)
        assert partition.high_watermark == 3
        partition.append(BATCH, HEADER)
        # Silent again; then the store answers.
        await scene.fall_silent()
        await scene.settle(lambda: partition.in_sync.is_in_doubt)
        scene.store.failures = []
        await scene.settle(lambda: not partition.in_sync.is_in_doubt)
        assert scene.stored_isr == (ONE,)
        partition.append(BATCH, HEADER)

    run(scenario)


def test_a_leader_that_nobody_sends_to_asks_too_when_its_followers_fall_silent(monkeypatch):
    monkeypatch.setattr(isr_updater, "RETRY_PAUSE_S", 0.001)

    async def scenario():
        scene = Scene((ONE, TWO))
        scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        await scene.changes.check_lag([scene.partition])
        assert not scene.changes._pending
        scene.clock.advance_ms(11_000)
        await scene.changes.check_lag([scene.partition])
        await scene.settle(lambda: scene.store.forced)
        assert scene.stored_isr == (ONE, TWO), "with the store there, one that has everything stays"
        assert not scene.others_were_asked_about
        await scene.fall_silent()
        await scene.settle(lambda: scene.others_were_asked_about == {"t"})
        assert scene.partition.in_sync.is_in_doubt

    run(scenario)


def test_what_a_bug_kept_from_being_looked_at_is_looked_at_again(monkeypatch):
    monkeypatch.setattr(isr_updater, "RETRY_PAUSE_S", 0.001)

    async def scenario():
        scene = Scene((ONE, TWO))
        partition = scene.partition
        partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        failures = [ZeroDivisionError()]

        async def ask_others(topics):
            if failures:
                raise failures.pop()

        scene.changes._ask_others = ask_others
        await scene.fall_silent()
        await scene.settle(lambda: not failures)
        scene.store.failures = []
        partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        await scene.settle(lambda: not partition.in_sync.is_in_doubt and not partition.in_sync.is_proposing)

    run(scenario)


def with_last_isr(scene, isr, last_isr):
    """The controller has taken brokers out of the ISR, or has elected this one with the rest."""
    record = scene.store.topic.partitions[0]._replace(isr=isr, last_isr=last_isr)
    scene.store.topic = replace(scene.store.topic, partitions=(record,))
    scene.partition.lead(ONE, record)


def test_a_leader_with_enough_in_sync_says_so_and_the_last_isr_is_forgotten():
    async def scenario():
        scene = Scene((ONE, TWO))
        with_last_isr(scene, (ONE, TWO), (ONE, TWO, THREE))
        await scene.settle(lambda: not scene.store.topic.partitions[0].last_isr)
        assert scene.stored_isr == (ONE, TWO)
        writes = len(scene.store.forced)
        with_last_isr(scene, (ONE, TWO), ())
        await scene.changes.check_lag([scene.partition])
        assert not scene.changes._pending
        assert len(scene.store.forced) == writes

    run(scenario)


def test_the_high_watermark_of_a_new_leader_waits_until_its_isr_is_written():
    async def scenario():
        scene = Scene((ONE, TWO))
        partition = scene.partition
        scene.store.failures = [False]
        with_last_isr(scene, (ONE, TWO), (ONE, TWO, THREE))
        partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        await scene.settle(lambda: not scene.store.failures)
        assert partition.high_watermark == 0, "the write failed"
        await scene.settle(lambda: partition.high_watermark == 1)
        assert scene.store.topic.partitions[0].last_isr == ()

    run(scenario)


def test_below_min_insync_those_who_fell_behind_are_remembered():
    async def scenario():
        scene = Scene((ONE, TWO, THREE))
        scene.partition.log.configure(TopicConfig(min_insync_replicas=2))
        scene.clock.advance_ms(11_000)
        await scene.changes.check_lag([scene.partition])
        await scene.settle(lambda: scene.stored_isr == (ONE,))
        assert scene.store.topic.partitions[0].last_isr == (ONE, TWO, THREE)
        with_last_isr(scene, (ONE,), (ONE, TWO, THREE))
        await scene.changes.check_lag([scene.partition])
        assert not scene.changes._pending, "there is nothing to say"
        scene.partition.follower_fetched(TWO, Offset(1), REGISTRATION)
        await scene.settle(lambda: TWO in scene.stored_isr)
        assert scene.store.topic.partitions[0].last_isr == ()

    run(scenario)
