"""Housekeeping: what the timers do to partitions, with the disk and the clock in the test's hand."""

import asyncio
import datetime
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.broker_config import BrokerConfig, read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import StorageError
from skep.base.files.files import DiskSpace
from skep.base.ids import BrokerId, LeaderEpoch, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.housekeeping import Housekeeping
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.checkpoint_files import decode_checkpoint
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.file_names import HIGH_WATERMARKS, RECOVERY_POINTS
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

DAY_MS = 86_400_000
DISK = 1_000_000


class Scene:
    """One broker's partitions over files in memory, and a disk whose use the test sets."""

    def __init__(self, topic: str = "t", **options: str) -> None:
        self.topic = topic
        self.clock = ManualClock()
        self.files = MemoryFiles()
        self.directory = LogDirectory(self.files, "/data", self.clock)
        self.directory.open()
        self.used = 0.1
        self.directory.disk_space = lambda: DiskSpace(int(self.used * DISK), DISK)
        config = {"segment.bytes": "200", "file.delete.delay.ms": "0", "retention.ms": str(DAY_MS)}
        partitions = tuple(PartitionRecord.new([BrokerId(1)]) for _ in range(2))
        record = TopicRecord(topic, uuid4(), partitions, config)
        catalog = SimpleNamespace(image=ClusterImage.of("c", topics=[record]), pending_deletions={})
        self.executor = ThreadPoolExecutor(1)
        self.supervisor = Supervisor()
        defaults = BrokerConfig().topic_defaults
        self.replicas = ReplicaManager(self.directory, catalog, defaults, self.clock, self.executor, self.supervisor)
        texts = {name.replace("_", "."): text for name, text in options.items()}
        self.config = CurrentConfig(read_broker_config({"skep.disk.force.ratio": "0.85", **texts}))
        self.housekeeping = Housekeeping(self.replicas, self.directory, self.config, self.clock)

    def append(self, partition: int, count: int = 1) -> None:
        """Batches that fill a segment each."""
        for _ in range(count):
            batch = build_batch([(None, b"x" * 100, self.clock.now_ms(), ())])
            header = check_produced(batch, max_message_bytes=1000)
            self.replicas.partition(self.topic, partition).append(batch, header)

    def starts(self) -> list[int]:
        return [self.replicas.partition(self.topic, index).log.log_start_offset for index in range(2)]

    async def close(self) -> None:
        await self.supervisor.close()
        self.executor.shutdown()


def run(scenario, **options):
    async def whole():
        scene = Scene(**options)
        try:
            await scenario(scene)
        finally:
            await scene.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_expired_segments_go():
    async def scenario(scene):
        scene.append(0, 3)
        scene.clock.advance_ms(DAY_MS + 1)
        scene.append(0, 2)
        await scene.housekeeping.check_retention()
        assert scene.starts() == [3, 0]

    run(scenario)


def test_outside_the_set_hour_expired_segments_stay_until_the_disk_fills_up():
    async def scenario(scene):
        hour = datetime.datetime.fromtimestamp((scene.clock.now_ms() + DAY_MS + 1) / 1000).hour
        scene.config.value = read_broker_config({"skep.retention.hour": str((hour + 1) % 24)})
        scene.append(0, 3)
        scene.clock.advance_ms(DAY_MS + 1)
        scene.append(0)
        await scene.housekeeping.check_retention()
        await scene.housekeeping.check_disk()
        assert scene.starts() == [0, 0]
        scene.used = 0.76
        await scene.housekeeping.check_disk()
        assert scene.starts() == [3, 0]

    run(scenario)


def test_above_the_second_mark_the_oldest_segments_go_unexpired_and_never_the_active_one(caplog):
    async def scenario(scene):
        scene.append(0, 2)
        scene.clock.advance_ms(1000)
        scene.append(1, 3)
        size = scene.replicas.partition("t", 0).log.segments[0].size
        scene.used = 0.85 + 1.5 * size / DISK
        await scene.housekeeping.check_disk()
        # The oldest of all logs first: one of partition 0, whose second is active, then one of partition 1.
        assert scene.starts() == [1, 1]
        scene.used = 0.89
        await scene.housekeeping.check_disk()
        assert scene.starts() == [1, 2]

    with caplog.at_level("INFO"):
        run(scenario)
    assert "early, because the disk is filling up" in caplog.text


def test_the_state_of_share_groups_is_not_deleted_early():
    async def scenario(scene):
        scene.append(0, 3)
        scene.used = 0.89
        await scene.housekeeping.check_disk()
        assert scene.starts() == [0, 0]

    run(scenario, topic="__share_group_state")


def test_above_the_third_mark_produce_is_refused_until_there_is_room_again(caplog):
    async def scenario(scene):
        scene.append(0)
        scene.used = 0.91
        await scene.housekeeping.check_disk()
        with pytest.raises(StorageError, match=r"skep\.disk\.refuse\.ratio"):
            scene.replicas.writable_partition("t", 0)
        assert scene.replicas.partition("t", 0).read(0, 1000, up_to=1, at_least_one=True).size > 0
        scene.used = 0.5
        await scene.housekeeping.check_disk()
        scene.replicas.writable_partition("t", 0)

    run(scenario)
    refusals = [record.getMessage() for record in caplog.records if "produce is" in record.getMessage()]
    assert refusals == [
        "the disk is 91.0% full: produce is refused",
        "the disk is 50.0% full: produce is accepted again",
    ]


def test_a_log_is_synced_when_its_time_has_come():
    async def scenario(scene):
        partition = scene.replicas.partition("t", 0)
        scene.append(0)
        partition.log.configure(read_broker_config({"log.flush.interval.ms": "1000"}).topic_defaults)
        scene.clock.advance_ms(999)
        await scene.housekeeping.flush_due()
        assert not partition.is_syncing
        scene.clock.advance_ms(1)
        await scene.housekeeping.flush_due()
        await partition.synced()
        assert partition.log.flushed_offset == 1

    run(scenario)


def test_a_topic_that_need_not_be_synced_any_more_loses_its_mark_with_the_next_look():
    async def scenario(scene):
        partition = scene.replicas.partition("t", 0)
        defaults = partition.log.config
        partition.log.configure(replace(defaults, flush_messages=1))
        scene.append(0)
        await partition.flush()
        assert scene.files.exists("/data/t-0/synced")
        partition.log.configure(defaults)
        await scene.housekeeping.flush_due()
        await partition.synced()
        assert partition.log.config is defaults
        assert not scene.files.exists("/data/t-0/synced")

    run(scenario)


def checkpoint(scene, name):
    path = f"/data/{name}"
    return decode_checkpoint(scene.files.read_whole(path)) if scene.files.exists(path) else {}


@pytest.mark.parametrize(
    "short", ["replica_high_watermark_checkpoint_interval_ms", "log_flush_offset_checkpoint_interval_ms"]
)
def test_high_watermarks_and_recovery_points_are_written_down_at_the_shorter_of_their_intervals(short):
    """The other one is longer than the test may take."""
    intervals = {
        "replica_high_watermark_checkpoint_interval_ms": "60000",
        "log_flush_offset_checkpoint_interval_ms": "60000",
        short: "1",
    }

    async def scenario(scene):
        scene.append(0, 3)
        await scene.replicas.partition("t", 0).flush()
        scene.housekeeping.start()
        try:
            for end in (3, 4):
                while checkpoint(scene, HIGH_WATERMARKS).get(TopicPartition("t", 0)) != end:
                    await asyncio.sleep(0.001)
                assert checkpoint(scene, RECOVERY_POINTS) == {TopicPartition("t", 0): 3}
                scene.append(0)
        finally:
            await scene.housekeeping.stop()

    run(scenario, **intervals)


def test_unexpired_segments_stay_when_the_expired_ones_are_enough():
    async def scenario(scene):
        scene.append(0, 3)
        scene.clock.advance_ms(DAY_MS + 1)
        scene.append(0)
        scene.append(1, 3)
        size = scene.replicas.partition("t", 0).log.segments[0].size
        scene.used = 0.85 + 2.5 * size / DISK
        await scene.housekeeping.check_disk()
        assert scene.starts() == [3, 0]

    run(scenario)


def give_readers_a_minute(scene):
    for partition in scene.replicas.open_partitions():
        partition.log.configure(replace(partition.log.config, file_delete_delay_ms=60_000))


async def files_are_gone(scene, partition, base_offset):
    path = f"/data/t-{partition}/{base_offset:020d}.log"
    while any(scene.files.exists(path + suffix) for suffix in ("", ".deleted")):
        await asyncio.sleep(0.001)


def test_on_a_disk_that_fills_up_expired_segments_go_without_the_delay_for_readers():
    async def scenario(scene):
        scene.append(0, 3)
        give_readers_a_minute(scene)
        scene.clock.advance_ms(DAY_MS + 1)
        scene.append(0)
        scene.used = 0.76
        await scene.housekeeping.check_disk()
        await files_are_gone(scene, 0, 0)

    run(scenario)


def test_segments_that_wait_for_their_delay_go_before_any_that_have_not_expired():
    async def scenario(scene):
        scene.append(0, 3)
        give_readers_a_minute(scene)
        scene.clock.advance_ms(DAY_MS + 1)
        scene.append(0)
        scene.append(1, 3)
        size = scene.replicas.partition("t", 1).log.segments[0].size
        await scene.housekeeping.check_retention()
        scene.used = 0.85 + 2.5 * size / DISK
        await scene.housekeeping.check_disk()
        assert scene.starts() == [3, 0]
        await files_are_gone(scene, 0, 0)

    run(scenario)


def test_unless_asked_for_nothing_is_deleted_early_and_produce_is_refused_until_there_is_room(caplog):
    async def scenario(scene):
        scene.append(0, 4)
        scene.used = 0.89
        await scene.housekeeping.check_disk()
        assert scene.replicas.writable_partition("t", 0)
        scene.used = 0.95
        await scene.housekeeping.check_disk()
        await scene.housekeeping.check_disk()
        with pytest.raises(StorageError, match=r"skep\.disk\.refuse\.ratio"):
            scene.replicas.writable_partition("t", 0)
        assert scene.starts() == [0, 0]
        scene.used = 0.89
        await scene.housekeeping.check_disk()
        assert scene.replicas.writable_partition("t", 0)

    run(scenario, skep_disk_force_ratio="1")
    assert [record.message for record in caplog.records if "produce is" in record.message] == [
        "the disk is 95.0% full: produce is refused",
        "the disk is 89.0% full: produce is accepted again",
    ]


def test_what_readers_may_not_see_yet_is_not_deleted_early():
    async def scenario(scene):
        scene.append(0, 4)
        scene.replicas.partition("t", 0).high_watermark = 2
        scene.used = 0.89
        await scene.housekeeping.check_disk()
        assert scene.starts() == [2, 0]

    run(scenario)


def follow_all(scene):
    """Other brokers lead from now on."""
    for partition in scene.replicas.open_partitions():
        partition.follow(LeaderEpoch(1))


def log_starts(scene):
    return sorted((one.topic_partition.partition, one.log.log_start_offset) for one in scene.replicas.open_partitions())


def test_a_follower_deletes_nothing_by_its_own_clock_nor_for_its_own_disk():
    async def scenario(scene):
        scene.append(0, 3)
        scene.append(1, 3)
        follow_all(scene)
        scene.clock.advance_ms(1000 * DAY_MS)
        await scene.housekeeping.check_retention()
        scene.used = 0.89
        await scene.housekeeping.check_disk()
        assert log_starts(scene) == [(0, 0), (1, 0)]
        assert all(len(one.log.segments) >= 3 for one in scene.replicas.open_partitions())

    run(scenario)


def test_a_follower_deletes_what_its_leader_has_deleted():
    async def scenario(scene):
        scene.append(0, 4)
        (partition,) = scene.replicas.open_partitions()
        follow_all(scene)
        partition.append_fetched(memoryview(b""), 4, 2)
        await scene.housekeeping.check_retention()
        await files_are_gone(scene, 0, 0)
        await files_are_gone(scene, 0, 1)
        assert partition.log.segments[0].base_offset == 2

    run(scenario)


def test_a_follower_keeps_its_active_segment_also_when_its_log_starts_at_its_end():
    async def scenario(scene):
        scene.append(0, 3)
        (partition,) = scene.replicas.open_partitions()
        follow_all(scene)
        partition.append_fetched(memoryview(b""), 3, 3)
        active = partition.log.segments[-1]
        await scene.housekeeping.check_retention()
        await files_are_gone(scene, 0, 1)
        assert list(partition.log.segments) == [active]
        assert partition.log.log_end_offset == 3

    run(scenario)


def test_the_disk_is_looked_at_before_anybody_can_write():
    async def scenario(scene):
        scene.used = 0.95
        scene.housekeeping.start()
        try:
            with pytest.raises(StorageError):
                scene.replicas.writable_partition("t", 0)
        finally:
            await scene.housekeeping.stop()

    run(scenario)


def test_a_log_that_the_disk_kept_from_being_cut_is_cut_when_the_disk_lets_it():
    async def scenario(scene):
        scene.append(0, 3)
        partition = scene.replicas.partition("t", 0)
        await partition.flush()
        partition.follow(LeaderEpoch(1))
        real_step = scene.files.step

        def refuse(kind: str, path: str) -> None:
            if kind == "sync" and "/t-0" in path:  # not what is written down before anything is cut
                raise StorageError(f"{path}: No space left on device")
            real_step(kind, path)

        scene.files.step = refuse
        with pytest.raises(StorageError):
            await partition.truncate_to(2)
        assert partition.log.is_half_cut
        await scene.housekeeping.flush_due()
        assert partition.log.is_half_cut, "it does not let it yet"
        scene.files.step = real_step
        while partition.log.failure is not None:
            await scene.housekeeping.flush_due()
            await asyncio.sleep(0)
        assert not partition.log.is_half_cut
        partition.lead(BrokerId(1), PartitionRecord((BrokerId(1),), (BrokerId(1),), BrokerId(1), LeaderEpoch(2)))
        scene.append(0)
        assert (partition.log.log_end_offset, partition.high_watermark) == (3, 3)

    run(scenario)
