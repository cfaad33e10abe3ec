"""A partition's high watermark and those who wait for it, with syncs in the test's hand."""

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, TopicPartition
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles, Survivors

BATCH = build_batch([(None, b"x" * 100, -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)


class SlowThread:
    """An executor whose jobs begin when the test lets them, one by one."""

    def __init__(self, executor):
        self._executor = executor
        self.permits = threading.Semaphore(0)

    def submit(self, job, *args):
        def when_permitted():
            assert self.permits.acquire(timeout=30)
            return job(*args)

        return self._executor.submit(when_permitted)


def partition_of(executor, **config):
    clock = ManualClock()
    directory = LogDirectory(MemoryFiles(), "/data", clock)
    directory.open()
    topic_id = uuid4()
    log = directory.log(TopicPartition("t", 0), TopicConfig(**config), topic_id)
    return Partition(log, topic_id, LeaderEpoch(0), clock, executor)


def run(scenario, **config):
    async def whole():
        with ThreadPoolExecutor(1) as threads:
            slow = SlowThread(threads)
            try:
                await scenario(partition_of(slow, **config), slow)
            finally:
                slow.permits.release(100)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_without_syncs_what_is_appended_can_be_read():
    async def scenario(partition, slow):
        _, synced = partition.append(BATCH, HEADER)
        assert synced is None
        assert partition.high_watermark == 1

    run(scenario)


def test_a_synced_topic_is_read_up_to_what_is_on_the_disk():
    async def scenario(partition, slow):
        _, first = partition.append(BATCH, HEADER)
        await asyncio.sleep(0)
        _, second = partition.append(BATCH, HEADER)
        assert partition.high_watermark == 0
        slow.permits.release()
        await first
        assert partition.high_watermark == 1
        assert not second.done()
        slow.permits.release()
        await second
        assert partition.high_watermark == 2

    run(scenario, flush_messages=1)


def test_a_reader_that_parks_between_two_syncs_is_woken_by_the_second():
    """The first sync must not use up the announcement of a batch that it did not cover."""

    async def scenario(partition, slow):
        _, first = partition.append(BATCH, HEADER)
        await asyncio.sleep(0)
        _, second = partition.append(BATCH, HEADER)
        slow.permits.release()
        await first
        delayed = DelayedFetch(1)
        delayed.watch(partition)
        reader = asyncio.create_task(delayed.wait(60_000))
        await asyncio.sleep(0)
        slow.permits.release()
        await second
        await asyncio.wait_for(reader, 30)

    run(scenario, flush_messages=1)


def test_what_recovery_found_and_the_disk_refused_to_sync_is_not_shown_before_a_later_sync():
    async def scenario():
        clock, files, topic_id = ManualClock(), MemoryFiles(), uuid4()
        directory = LogDirectory(files, "/data", clock)
        directory.open()
        log = directory.log(TopicPartition("t", 0), TopicConfig(), topic_id)
        for _ in range(5):
            log.append(BATCH, HEADER, LeaderEpoch(0), clock.now_ms())
        log.delete_records_before(3)
        directory.write_checkpoints()
        files.crash(names=Survivors.ALL, content=Survivors.ALL)

        directory = LogDirectory(files, "/data", clock)
        directory.open()
        files.fail("sync")
        log = directory.log(TopicPartition("t", 0), TopicConfig(flush_messages=1), topic_id)
        files.heal()
        with ThreadPoolExecutor(1) as threads:
            partition = Partition(log, topic_id, LeaderEpoch(0), clock, threads)
            assert (log.log_start_offset, partition.high_watermark, log.log_end_offset) == (3, 3, 5)
            await partition.flush()
            assert partition.high_watermark == 5

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_partition_that_nobody_has_any_more_is_gone_without_the_garbage_collector():
    partition = partition_of(None)
    partition.append(BATCH, HEADER)
    partition.follow(LeaderEpoch(1))
    gone = weakref.ref(partition)
    gc.disable()
    try:
        del partition
        assert gone() is None
    finally:
        gc.enable()
