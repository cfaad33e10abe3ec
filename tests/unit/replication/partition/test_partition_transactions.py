"""A partition's last stable offset, markers that wait for a sync, and who is woken when."""

import asyncio

from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.replication.partition.partition import Partition
from tests.unit.replication.partition.test_partition import run


def transactional(sequence: int, *, producer: int = 1, is_transactional: bool = True) -> bytes:
    return build_batch(
        [(None, b"x" * 100, -1, ())],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def append(partition: Partition, batch: bytes):
    return partition.append(batch, check_produced(batch, max_message_bytes=1000))


def delay(partition: Partition, missing_bytes: int, *, read_committed: bool) -> asyncio.Task:
    delayed = DelayedFetch(missing_bytes, read_committed=read_committed)
    delayed.watch(partition)
    return asyncio.ensure_future(delayed.wait(60_000))


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_transaction_holds_the_last_stable_offset_until_its_marker():
    async def scenario(partition, slow):
        append(partition, transactional(0, is_transactional=False, producer=2))
        assert partition.last_stable_offset == 1
        append(partition, transactional(0))
        append(partition, transactional(1))
        assert (partition.high_watermark, partition.last_stable_offset) == (3, 1)
        appended, synced = partition.append_marker(1, 0, 0, True)
        assert (appended.base_offset, synced) == (3, None)
        assert (partition.high_watermark, partition.last_stable_offset) == (4, 4)

    run(scenario)


def test_a_marker_that_is_not_synced_decides_nothing_yet():
    async def scenario(partition, slow):
        _, written = append(partition, transactional(0))
        slow.permits.release()
        await written
        assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
        _, marked = partition.append_marker(1, 0, 0, True)
        await settle()
        assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
        slow.permits.release()
        await marked
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)

    run(scenario, flush_messages=1)


def test_what_is_in_a_transaction_wakes_a_reader_of_committed_records_when_it_ends():
    async def scenario(partition, slow):
        append(partition, transactional(0))
        reader = delay(partition, 1, read_committed=True)
        await settle()
        append(partition, transactional(1))
        await settle()
        assert not reader.done(), "it could not read what came"
        partition.append_marker(1, 0, 0, True)
        await asyncio.wait_for(reader, 30)

    run(scenario)


def test_a_marker_wakes_a_reader_however_many_bytes_it_waits_for():
    async def scenario(partition, slow):
        append(partition, transactional(0))
        reader = delay(partition, 100_000, read_committed=True)
        await settle()
        partition.append_marker(1, 0, 0, False)
        await asyncio.wait_for(reader, 30)

    run(scenario)


def test_a_marker_behind_an_older_transaction_wakes_no_reader_of_committed_records():
    async def scenario(partition, slow):
        append(partition, transactional(0, producer=1))
        append(partition, transactional(0, producer=2))
        reader = delay(partition, 1, read_committed=True)
        await settle()
        partition.append_marker(2, 0, 0, True)
        await settle()
        assert not reader.done()
        assert partition.last_stable_offset == 0
        partition.append_marker(1, 0, 0, True)
        await asyncio.wait_for(reader, 30)

    run(scenario)


def test_other_readers_are_woken_by_bytes_as_ever():
    async def scenario(partition, slow):
        reader = delay(partition, 100, read_committed=False)
        await settle()
        append(partition, transactional(0))
        await asyncio.wait_for(reader, 30)
        committed = delay(partition, 100, read_committed=True)
        partition.append_marker(1, 0, 0, True)
        await settle()
        committed_again = delay(partition, 100, read_committed=True)
        await settle()
        append(partition, transactional(0, producer=3, is_transactional=False))
        await asyncio.wait_for(committed_again, 30)
        committed.cancel()

    run(scenario)
