"""A log that is cut in a thread: nobody else uses it meanwhile, and a role that comes then is taken afterwards."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError, StorageError
from skep.base.ids import BrokerId, LeaderEpoch, Offset
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

ONE, TWO = BrokerId(1), BrokerId(2)
BATCH = build_batch([(b"k", b"x" * 100, -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)
LED = PartitionRecord((ONE, TWO), (ONE, TWO), ONE, LeaderEpoch(1))
FOLLOWED = PartitionRecord((ONE, TWO), (ONE, TWO), TWO, LeaderEpoch(2))
LED_AGAIN = PartitionRecord((ONE, TWO), (ONE, TWO), ONE, LeaderEpoch(3))


class Scene:
    """Broker 1, which led a partition with ten records and follows broker 2 now. ``allowed`` lets threads go on."""

    def __init__(self):
        self.files = MemoryFiles()
        self.directory = LogDirectory(self.files, "/data", ManualClock())
        self.directory.open()
        self.topic_id = uuid4()
        self.allowed = threading.Event()
        self.catalog = SimpleNamespace(
            image=ClusterImage.of("c", topics=[self.topic(LED)]), deletion_done=self._done, pending_deletions={}
        )
        self.executor = ThreadPoolExecutor(2)
        self.supervisor = Supervisor()
        self.replicas = ReplicaManager(
            self.directory, self.catalog, TopicConfig(), ManualClock(), self.executor, self.supervisor, ONE
        )
        self.partition = self.replicas.partition("t", 0)
        self.log = self.partition.log
        for _ in range(10):
            self.partition.append(BATCH, HEADER, acks_all=False)
        self.become(FOLLOWED)

    def topic(self, record):
        return TopicRecord("t", self.topic_id, (record,))

    def become(self, record):
        old = self.catalog.image
        self.catalog.image = ClusterImage.of("c", topics=[] if record is None else [self.topic(record)])
        self.replicas.image_changed(old, self.catalog.image)

    async def _done(self, topic_id):
        """The deletion of the topic is noted."""

    def cut_to(self, offset):
        """Begins a cut whose thread waits until it is allowed to go on."""
        in_thread = self.replicas.truncations._in_thread
        self.replicas.truncations._in_thread = lambda work: in_thread(lambda: (self.allowed.wait(60), work()))
        return self.partition.truncate_to(Offset(offset))


def run(scenario):
    async def whole():
        scene = Scene()
        try:
            await scenario(scene)
        finally:
            scene.allowed.set()
            await scene.supervisor.close()
            scene.executor.shutdown()

    asyncio.run(asyncio.wait_for(whole(), 60))


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0.001)


def test_while_a_log_is_cut_the_loop_goes_on_and_nobody_else_uses_the_log():
    async def scenario(scene):
        cut = scene.cut_to(4)
        await turns()
        assert not cut.done()
        assert scene.log.is_being_cut
        with pytest.raises(StorageError, match="is being truncated"):
            scene.partition.read(Offset(0), 1000, up_to=Offset(4), at_least_one=True)
        with pytest.raises(StorageError, match="is being truncated"):
            scene.log.append_replicated(BATCH, 0)
        with pytest.raises(StorageError, match="is being truncated"):
            await scene.partition.flush()
        assert not scene.log.flush_is_due(10**15)
        assert not scene.log.roll_if_due(10**15)
        assert scene.replicas.segment_deletion.delete_expired(scene.partition) == 0
        scene.allowed.set()
        await cut
        assert (scene.log.log_end_offset, scene.log.is_being_cut) == (4, False)
        assert scene.partition.read(Offset(0), 1000, up_to=Offset(4), at_least_one=True).size

    run(scenario)


def test_a_leadership_that_comes_while_the_log_is_cut_is_taken_when_it_is_cut():
    async def scenario(scene):
        cut = scene.cut_to(4)
        await turns()
        scene.become(LED_AGAIN)
        await turns()
        assert not scene.partition.is_leader
        with pytest.raises(KafkaError):
            scene.partition.append(BATCH, HEADER, acks_all=False)
        scene.allowed.set()
        await cut
        assert scene.partition.is_leader
        assert scene.partition.leader_epoch == 3
        appended, _ = scene.partition.append(BATCH, HEADER, acks_all=False)
        assert appended.base_offset == 4, "after what is left, not after what was cut"
        assert scene.log.end_offset_for_epoch(LeaderEpoch(1)) == (1, 4)

    run(scenario)


def test_a_topic_that_is_deleted_while_its_log_is_cut_loses_its_files_afterwards():
    async def scenario(scene):
        cut = scene.cut_to(4)
        await turns()
        scene.become(None)
        await turns()
        assert scene.files.exists("/data/t-0")
        assert scene.replicas.replica_deletion.is_deleting("t")
        scene.allowed.set()
        await cut
        while scene.files.exists("/data/t-0"):
            await asyncio.sleep(0.001)

    run(scenario)


def test_a_checkpoint_that_is_written_while_the_log_is_cut_promises_no_more_than_is_left():
    async def scenario(scene):
        await scene.partition.flush()
        await scene.replicas.write_checkpoints()
        cut = scene.cut_to(4)
        await turns()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert b"t 0 10" not in scene.files.read_whole(f"/data/{name}"), "lowered before anything is cut"
        await scene.replicas.write_checkpoints()
        assert scene.files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 4\n"
        scene.allowed.set()
        await cut

    run(scenario)


def test_a_cut_that_the_disk_refuses_is_ended_when_it_lets_it():
    async def scenario(scene):
        await scene.partition.flush()
        real_step = scene.files.step

        def refuse(kind, path):
            if kind == "sync" and "/t-0" in path:
                raise StorageError(f"{path}: No space left on device")
            real_step(kind, path)

        scene.files.step = refuse
        scene.allowed.set()
        with pytest.raises(StorageError, match="No space"):
            await scene.cut_to(4)
        assert scene.log.is_half_cut
        assert not scene.log.is_being_cut
        await scene.replicas.write_checkpoints()
        assert scene.files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 4\n"
        scene.files.step = real_step
        await scene.replicas.end_truncation(scene.partition)
        assert not scene.log.is_half_cut
        assert scene.log.log_end_offset == 4

    run(scenario)


def test_a_fetcher_that_stops_in_the_middle_leaves_a_whole_cut():
    async def scenario(scene):
        cut = scene.cut_to(4)
        waiting = asyncio.ensure_future(asyncio.wait([cut]))
        await turns()
        waiting.cancel()
        scene.allowed.set()
        await scene.replicas.stop()
        assert (scene.log.log_end_offset, scene.log.is_being_cut) == (4, False)

    run(scenario)


def test_a_log_that_begins_anew_is_forgotten_by_the_checkpoints_before():
    async def scenario(scene):
        await scene.partition.flush()
        await scene.replicas.write_checkpoints()
        await scene.partition.start_over_at(Offset(50))
        assert (scene.log.log_start_offset, scene.log.log_end_offset) == (50, 50)
        assert b"t 0" not in scene.files.read_whole("/data/recovery-point-offset-checkpoint")
        scene.log.append_replicated(build_batch([(b"k", b"x", -1, ())], base_offset=50, partition_leader_epoch=2), 0)
        assert scene.log.log_end_offset == 51
        assert scene.partition.high_watermark == 50

    run(scenario)


def test_a_log_that_begins_anew_is_synced_in_a_thread_and_no_checkpoint_speaks_of_it_meanwhile(monkeypatch):
    async def scenario(scene):
        await scene.partition.flush()
        await scene.replicas.write_checkpoints()
        waits, threads = threading.Event(), []
        sync_directory = scene.files.sync_directory

        def slowly(path):
            threads.append(threading.current_thread())
            if path == "/data" and not scene.files.exists("/data/t-0") and not waits.is_set():
                waits.set()
                assert scene.allowed.wait(60)
            sync_directory(path)

        monkeypatch.setattr(scene.files, "sync_directory", slowly)
        cut = scene.partition.start_over_at(Offset(50))
        while not waits.is_set():
            await asyncio.sleep(0)
        await scene.replicas.write_checkpoints()
        for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
            assert b"t 0" not in scene.files.read_whole(f"/data/{name}")
        scene.allowed.set()
        await cut
        assert (scene.log.log_start_offset, scene.log.log_end_offset) == (50, 50)
        assert threading.main_thread() not in threads

    run(scenario)
