"""The broker's side of compaction: which log is next, what becomes of a pass, and who has to wait. No process here."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from uuid import uuid4

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import StorageError
from skep.base.ids import BrokerId
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.housekeeping import Housekeeping
from skep.replication.replica_manager import ReplicaManager
from skep.replication.upkeep.compaction_process import DamagedLog, HelperFailed
from skep.replication.upkeep.compactor import RETRY_S
from skep.storage.compaction.compaction_pass import CompactionPass
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from tests.compacting import records_of
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "400",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0.1",
}


class Helper:
    """In the helper process's place: does a pass at once, in this process, or what the test says."""

    pid = None

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.directories: list[str] = []
        self.failures: list[Exception] = []
        self.before_groups = lambda: None
        self.is_killed = False

    async def run(self, request, on_group):
        self.directories.append(request.directory)
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        compaction = CompactionPass(self.files, request, lambda size: None)
        for group in compaction.run():
            self.before_groups()
            await on_group(group)
        return compaction.result()

    def kill(self) -> None:
        self.is_killed = True

    async def close(self) -> None:
        self.is_killed = True


class Scene:
    def __init__(self, **config: str) -> None:
        self.clock = ManualClock()
        self.files = MemoryFiles()
        self.directory = LogDirectory(self.files, "/data", self.clock)
        self.directory.open()
        partitions = tuple(PartitionRecord.new([BrokerId(1)]) for _ in range(2))
        topics = [TopicRecord("t", uuid4(), partitions, CONFIG | config), TopicRecord("plain", uuid4(), partitions, {})]
        self.catalog = SimpleNamespace(image=ClusterImage.of("c", topics=topics), pending_deletions={})
        self.executor = ThreadPoolExecutor(2)
        self.supervisor = Supervisor()
        self.config = CurrentConfig(read_broker_config({}))
        self.replicas = ReplicaManager(
            self.directory, self.catalog, self.config.value.topic_defaults, self.clock, self.executor, self.supervisor
        )
        self.helper = Helper(self.files)
        self.replicas.compactor._process = self.helper
        self.housekeeping = Housekeeping(self.replicas, self.directory, self.config, self.clock)

    def partition(self, index: int, topic: str = "t"):
        return self.replicas.partition(topic, index)

    async def fill(self, index: int, count: int, topic: str = "t") -> None:
        """So many records of three keys, most of them in sealed segments, and synced."""
        partition = self.partition(index, topic)
        for n in range(count):
            batch = build_batch([(b"key-%d" % (n % 3), b"%d" % n, self.clock.now_ms(), ())])
            partition.append(batch, check_produced(batch, max_message_bytes=1000))
        await partition.flush()

    def keys_once(self, index: int) -> bool:
        """Whether below the active segment no key is there twice."""
        log = self.partition(index).log
        records = [r.key for r in records_of(log) if r.offset < log.segments[-1].base_offset]
        return len(set(records)) == len(records)

    async def close(self) -> None:
        await self.supervisor.close()
        self.executor.shutdown()


def run(scenario, **config):
    async def whole():
        scene = Scene(**config)
        try:
            await scenario(scene)
        finally:
            await scene.close()

    asyncio.run(asyncio.wait_for(whole(), 300))


def test_the_dirtiest_log_comes_first_and_all_that_are_due_follow():
    async def scenario(scene):
        await scene.fill(0, 30)
        await scene.housekeeping.compact()
        await scene.fill(0, 30)
        await scene.fill(1, 30)
        await scene.fill(0, 30, "plain")
        scene.helper.directories.clear()
        await scene.housekeeping.compact()
        assert scene.helper.directories == ["/data/t-1", "/data/t-0"]
        assert scene.keys_once(0)
        assert scene.keys_once(1)
        await scene.housekeeping.compact()
        assert len(scene.helper.directories) == 2, "nothing is due any more"

    run(scenario)


def test_where_a_pass_ended_is_on_the_disk():
    async def scenario(scene):
        await scene.fill(0, 30)
        await scene.housekeeping.compact()
        active = scene.partition(0).log.segments[-1].base_offset
        checkpoint = scene.files.read_whole("/data/cleaner-offset-checkpoint")
        assert checkpoint == f"0\n1\nt 0 {active}\n".encode()

    run(scenario)


def test_without_the_cleaner_nothing_is_compacted():
    async def scenario(scene):
        scene.config.value = read_broker_config({"log.cleaner.enable": "false"})
        await scene.fill(0, 30)
        await scene.housekeeping.compact()
        assert scene.helper.directories == []

    run(scenario)


def test_a_pass_that_failed_is_tried_again_later_and_leaves_nothing_behind():
    async def scenario(scene):
        await scene.fill(0, 30)
        await scene.fill(1, 30)
        for failure in (HelperFailed("it died"), StorageError("no room")):
            scene.files.open("/data/t-0/00000000000000000000.log.cleaned", create=True)
            scene.helper.failures = [failure]
            await scene.housekeeping.compact()
            assert not [name for name in scene.files.list_directory("/data/t-0") if name.endswith(".cleaned")]
            assert scene.keys_once(1), "the other log does not wait"
            assert not scene.keys_once(0)
            scene.clock.advance_ms(int(RETRY_S * 1000))
        await scene.housekeeping.compact()
        assert scene.keys_once(0)

    run(scenario)


def test_a_damaged_log_is_said_once_and_never_tried_again(caplog):
    async def scenario(scene):
        await scene.fill(0, 30)
        scene.helper.failures = [DamagedLog("byte 17")]
        for _ in range(3):
            await scene.housekeeping.compact()
            scene.clock.advance_ms(10**9)
        assert scene.helper.directories == ["/data/t-0"]
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
            "t-0: the log is damaged and is no longer compacted: byte 17"
        ]

    run(scenario)


def test_segments_that_are_being_compacted_are_not_deleted_meanwhile():
    async def scenario(scene):
        await scene.fill(0, 30)
        partition = scene.partition(0)
        starts = []

        def delete_records() -> None:
            scene.replicas.delete_records_before(partition, partition.high_watermark - 1)
            starts.append(partition.log.segments[0].base_offset)

        scene.helper.before_groups = delete_records
        await scene.housekeeping.compact()
        assert set(starts) == {0}
        scene.replicas.segment_deletion.delete_expired(partition)
        assert partition.log.segments[0].base_offset > 0

    run(scenario)


def test_a_partition_that_is_dropped_during_a_pass_is_left_alone():
    async def scenario(scene):
        await scene.fill(0, 30)
        partition = scene.partition(0)
        segments = partition.log.segments
        abandoned = []

        def drop() -> None:
            if not abandoned:
                del scene.replicas._partitions["t", 0]
                abandoned.append(asyncio.ensure_future(scene.replicas.compactor.abandon(partition)))

        scene.helper.before_groups = drop
        await scene.housekeeping.compact()
        await asyncio.gather(*abandoned)
        assert scene.helper.is_killed
        assert partition.log.segments == segments
        assert scene.directory.cleaned_up_to(partition.topic_partition) in (None, 0)

    run(scenario)


def test_the_indexes_of_aborted_transactions_are_read_in_a_thread(monkeypatch):
    readers = []

    def read(log, first, end):
        readers.append(threading.current_thread())
        return []

    monkeypatch.setattr(Log, "aborted_transactions", read)

    async def scenario(scene):
        await scene.fill(0, 30)
        await scene.housekeeping.compact()
        assert scene.keys_once(0)
        assert readers
        assert threading.main_thread() not in readers

    run(scenario)


def test_a_disk_that_refuses_a_rename_leaves_a_log_that_can_be_read(caplog):
    async def scenario(scene):
        await scene.fill(0, 30)
        log = scene.partition(0).log
        newest = {record.key: record.value for record in records_of(log)}
        real, calls = scene.files.rename_file, []

        def rename_file(file, new):
            calls.append(new)
            if len(calls) == 3:
                raise StorageError("refused")
            real(file, new)

        scene.files.rename_file = rename_file
        await scene.housekeeping.compact()
        assert {record.key: record.value for record in records_of(log)} == newest
        assert "not compacted until the broker is restarted" in caplog.text
        passes = len(scene.helper.directories)
        scene.clock.advance_ms(10**9)
        await scene.fill(0, 30)
        await scene.housekeeping.compact()
        assert len(scene.helper.directories) == passes
        scene.files.rename_file = real
        await scene.replicas.stop()
        scene.directory.close()
        again = LogDirectory(scene.files, "/data", scene.clock)
        again.open()
        reopened = again.log(log.topic_partition, log.config, log.topic_id)
        assert {record.key: record.value for record in records_of(reopened)} == {
            record.key: record.value for record in records_of(log)
        }

    run(scenario)


def test_the_disk_filling_up_takes_no_segment_of_a_compacted_log():
    async def scenario(scene):
        from skep.base.files.files import DiskSpace

        await scene.fill(0, 30)
        scene.directory.disk_space = lambda: DiskSpace(90, 100)
        await scene.housekeeping.check_disk()
        assert scene.partition(0).log.log_start_offset == 0

    run(scenario)
