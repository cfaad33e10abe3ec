"""Partitions that come and go while others of the same topic are led, and a topic made anew under a name."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError, StoreUnavailable
from skep.base.ids import BrokerId, LeaderEpoch, Offset
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.partition.partition import Partition
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
BATCH = build_batch([(None, b"x", -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)
LED = PartitionRecord((ONE, TWO, THREE), (ONE, TWO), ONE, LeaderEpoch(3))
FOLLOWED = PartitionRecord((TWO, THREE, ONE), (TWO, THREE, ONE), TWO, LeaderEpoch(1))


class Scene:
    """Broker 1 and what it is told; ``roles`` are those that it gave its partitions."""

    def __init__(self, topic):
        directory = LogDirectory(MemoryFiles(), "/data", ManualClock())
        directory.open()
        self.done = []
        self.refusals = []
        self.catalog = SimpleNamespace(
            image=ClusterImage.of("c", topics=[topic]), deletion_done=self._deletion_done, pending_deletions={}
        )
        self.executor = ThreadPoolExecutor(1)
        self.supervisor = Supervisor()
        self.replicas = ReplicaManager(
            directory, self.catalog, TopicConfig(), ManualClock(), self.executor, self.supervisor, ONE
        )
        self.roles = []
        self.replicas.on_role_change = lambda partition, record: self.roles.append((partition.topic_id, record))
        self.replicas.take_roles()

    async def _deletion_done(self, topic_id):
        if self.refusals:
            raise self.refusals.pop(0)
        self.done.append(topic_id)
        self.catalog.pending_deletions.pop(topic_id, None)

    def become(self, *topics):
        old, self.catalog.image = self.catalog.image, ClusterImage.of("c", topics=list(topics))
        self.replicas.image_changed(old, self.catalog.image)

    async def until(self, condition):
        while not condition():
            await asyncio.sleep(0.001)


def run(topic, scenario):
    async def whole():
        scene = Scene(topic)
        with contextlib.closing(SimpleNamespace(close=scene.executor.shutdown)):
            await scenario(scene)
            await scene.supervisor.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_removing_the_files_of_one_partition_settles_no_proposal_of_another():
    topic_id = uuid4()

    async def scenario(scene):
        partition = scene.replicas.partition("t", 0)
        partition.append(BATCH, HEADER, acks_all=False)
        for follower in (TWO, THREE):
            partition.follower_fetched(follower, Offset(1), 1)
        elsewhere = FOLLOWED._replace(replicas=(TWO, THREE), isr=(TWO, THREE))
        scene.become(TopicRecord("t", topic_id, (LED, elsewhere)))
        partition.in_sync.propose((ONE, TWO, THREE))
        await scene.until(lambda: not scene.replicas.replica_deletion.blocks("t", 1))
        assert partition.in_sync.is_proposing
        _, acknowledged = partition.append(BATCH, HEADER)
        partition.follower_fetched(TWO, Offset(2), 1)
        assert not acknowledged.done(), "broker 3 may be in the ISR by now, and does not have it"
        partition.follower_fetched(THREE, Offset(2), 1)
        assert acknowledged.done()

    run(TopicRecord("t", topic_id, (LED, FOLLOWED)), scenario)


def test_a_partition_that_is_given_back_while_its_files_go_is_followed_when_they_are_gone():
    topic_id = uuid4()
    here = TopicRecord("t", topic_id, (FOLLOWED,))

    async def scenario(scene):
        scene.become(TopicRecord("t", topic_id, (FOLLOWED._replace(replicas=(TWO, THREE), isr=(TWO, THREE)),)))
        scene.become(here)
        await scene.until(lambda: scene.replicas.open_partitions())
        assert [role for _, role in scene.roles] == [FOLLOWED, None, FOLLOWED]

    run(here, scenario)


def test_a_topic_made_anew_under_the_name_is_followed_when_the_files_of_the_first_are_out_of_its_way():
    first, second = (TopicRecord("t", uuid4(), (FOLLOWED,)) for _ in range(2))

    async def scenario(scene):
        scene.become(second)
        assert not scene.replicas.open_partitions()
        await scene.until(lambda: scene.replicas.open_partitions() and scene.done)
        assert scene.roles == [(first.topic_id, FOLLOWED), (first.topic_id, None), (second.topic_id, FOLLOWED)]
        assert scene.done == [first.topic_id]

    run(first, scenario)


def test_a_deletion_that_the_store_could_not_be_told_of_is_told_later():
    topic = TopicRecord("t", uuid4(), (FOLLOWED,))

    async def scenario(scene):
        scene.catalog.pending_deletions[topic.topic_id] = "t"
        scene.refusals = [StoreUnavailable("away"), StoreUnavailable("away")]
        scene.become()
        await scene.replicas.replica_deletion.confirm_deletions()
        assert len(scene.refusals) == 2, "its files are not gone yet"
        await scene.until(lambda: len(scene.refusals) == 1)
        await scene.replicas.replica_deletion.confirm_deletions()
        assert not scene.done
        assert not scene.refusals
        await scene.replicas.replica_deletion.confirm_deletions()
        assert scene.done == [topic.topic_id]

    run(topic, scenario)


def test_an_option_that_only_a_newer_broker_knows_leaves_the_others_as_they_are_set():
    topic = TopicRecord("t", uuid4(), (LED,), {"of.a.newer.version": "1", "retention.ms": "5"})

    async def scenario(scene):
        assert scene.replicas.partition("t", 0).log.config.retention_ms == 5

    run(topic, scenario)


@pytest.mark.parametrize("what", ["lead", "on_role_change"])
def test_a_role_that_an_open_partition_could_not_take_is_taken_when_it_is_tried_again(monkeypatch, what):
    topic_id = uuid4()
    elected = FOLLOWED._replace(leader=ONE, leader_epoch=LeaderEpoch(2))

    def refuse(*_):
        raise StorageError("the disk refuses")

    async def scenario(scene):
        [partition] = scene.replicas.open_partitions()
        with monkeypatch.context() as patched:
            patched.setattr(*((Partition, "lead") if what == "lead" else (scene.replicas, "on_role_change")), refuse)
            scene.become(TopicRecord("t", topic_id, (elected,)))
            scene.replicas.retry_failed_opens()
        assert [role for _, role in scene.roles] == [FOLLOWED]
        scene.replicas.retry_failed_opens()
        assert [role for _, role in scene.roles] == [FOLLOWED, elected]
        assert partition.is_leader
        assert partition.leader_epoch == 2
        scene.replicas.retry_failed_opens()
        assert len(scene.roles) == 2, "it has its role"

    run(TopicRecord("t", topic_id, (FOLLOWED,)), scenario)


def test_a_replica_that_left_and_came_back_takes_its_first_batch_without_writing_checkpoints(monkeypatch):
    """They are written before it is opened: an append runs on the event loop, which must not wait for the disk."""
    topic_id = uuid4()
    elsewhere = PartitionRecord((TWO, THREE), (TWO, THREE), TWO, LeaderEpoch(4))
    back = PartitionRecord((ONE, TWO), (ONE, TWO), ONE, LeaderEpoch(5))

    async def scenario(scene):
        scene.replicas.partition("t", 0).append(BATCH, HEADER, acks_all=False)
        await scene.replicas.partition("t", 0).flush()
        await scene.replicas.write_checkpoints()
        scene.become(TopicRecord("t", topic_id, (elsewhere,)))
        scene.become(TopicRecord("t", topic_id, (back,)))
        await scene.until(lambda: ("t", 0) in scene.replicas._partitions)
        written = []
        monkeypatch.setattr(scene.replicas._directory, "write_checkpoints", lambda: written.append(1))
        partition = scene.replicas.partition("t", 0)
        assert partition.log.log_end_offset == 0
        partition.append(BATCH, HEADER, acks_all=False)
        assert not written

    run(TopicRecord("t", topic_id, (LED,)), scenario)
