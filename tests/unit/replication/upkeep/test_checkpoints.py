"""Checkpoints are collected in slices, one at a time, and shared by those who ask for the same one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.records.batch import read_header
from skep.records.builder import build_batch
from skep.replication.upkeep.checkpoints import Checkpoints
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock, TickingClock
from tests.memory_files import MemoryFiles
from tests.slices import counting_turns

BATCH = build_batch([(b"k", b"v", -1, ())])
RECOVERY_POINTS = "/data/recovery-point-offset-checkpoint"
MANY = 1000


class Scene:
    def __init__(self, executor, partitions=MANY):
        self.files = MemoryFiles()
        self.directory = LogDirectory(self.files, "/data", ManualClock())
        self.directory.open()
        for number in range(partitions):
            self.log(number)
        self.high_watermarks = {TopicPartition("t", number): Offset(0) for number in range(partitions)}
        slicer = Slicer(TickingClock())
        self.checkpoints = Checkpoints(self.directory, executor, slicer, lambda: self.high_watermarks.items())
        self.writes = 0
        write = self.files.write_atomically

        def counted(path, data, *, sync=True):
            self.writes += path == RECOVERY_POINTS
            write(path, data, sync=sync)

        self.files.write_atomically = counted

    def log(self, number, topic_id=1):
        return self.directory.log(TopicPartition("t", number), TopicConfig(), UUID(int=topic_id))

    def fill(self, number, count=3, topic_id=1):
        log = self.log(number, topic_id)
        for _ in range(count):
            log.append(BATCH, read_header(BATCH), LeaderEpoch(0), 0)
        log.flush()

    def points(self):
        return self.files.read_whole(RECOVERY_POINTS).decode().splitlines()[2:]


def run(scenario, partitions=MANY):
    async def whole():
        with ThreadPoolExecutor(1) as executor:
            await scenario(Scene(executor, partitions))

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_collecting_leaves_turns_to_others():
    async def scenario(scene):
        scene.fill(7)
        _, turns = await counting_turns(scene.checkpoints.write())
        assert scene.points() == ["t 7 3"]
        assert turns >= 2 * MANY / 50 / 5

    run(scenario)


def test_those_who_ask_while_one_is_collected_share_the_next():
    async def scenario(scene):
        first = asyncio.ensure_future(scene.checkpoints.write())
        await asyncio.sleep(0)
        scene.fill(0)  # was looked at already
        others = [asyncio.ensure_future(scene.checkpoints.write()) for _ in range(5)]
        await asyncio.gather(first, *others)
        assert scene.writes == 2
        assert scene.points() == ["t 0 3"]

    run(scenario)


def test_a_checkpoint_that_failed_is_not_shared():
    async def scenario(scene):
        real_step = scene.files.step
        failures = [StorageError("No space left on device")]

        def refuse(kind, path):
            if failures and "offset-checkpoint" in path:
                raise failures.pop()
            real_step(kind, path)

        scene.files.step = refuse
        scene.fill(0)
        results = await asyncio.gather(*(scene.checkpoints.write() for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [StorageError, type(None), type(None)]
        assert scene.points() == ["t 0 3"]

    run(scenario, partitions=3)


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_partition_that_is_deleted_while_one_is_collected_leaves_nothing_to_the_next_of_its_name(is_made_anew):
    async def scenario(scene):
        scene.fill(0, count=9)
        collecting = scene.directory.checkpoint_in_slices()
        for _ in range(MANY // 50 - 1):
            next(collecting)  # partition 0 was looked at
        scene.directory.delete_partition(TopicPartition("t", 0))
        if is_made_anew:
            scene.fill(0, count=1, topic_id=2)
        with pytest.raises(StopIteration) as collected:
            while True:
                next(collecting)
        collected.value.value()
        if not is_made_anew:
            scene.fill(0, count=1, topic_id=2)
        assert "t 0 9" not in scene.points(), "a crash would believe nine records that nobody checked"

    run(scenario)
