"""Replays a partition into a shard: this rebuilds a coordinator's state after a restart or a failover."""

import asyncio
from concurrent.futures import Executor
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.loop.slicer import Slicer, Work
from skep.coordination.partitions import WritablePartition
from skep.coordination.shard import Decoder, ProducerStamp, Shard
from skep.records.batch import BatchHeader, is_intact
from skep.records.end_txn_marker import read_marker
from skep.records.record import batches_in, iterate_records

PIECE_BYTES = 128 * 1024
"""Bytes that a thread reads at once."""
RECORDS_AT_ONCE = 16
"""Records replayed in one slice: at most a millisecond of the event loop, which all loading partitions share."""


class Replayed(NamedTuple):
    records: int
    damaged: int


async def replay_log(
    partition: WritablePartition, shard: Shard, decode: Decoder, executor: Executor, slicer: Slicer
) -> Replayed:
    """Replays everything that is in the log now, in order.

    Raises StorageError when the log cannot be read and KafkaError when a batch is damaged. A record that cannot be
    decoded is counted and skipped: it belongs to one key, and the other keys need their state.
    """
    loop = asyncio.get_running_loop()
    log = partition.log
    offset, end = log.log_start_offset, log.log_end_offset
    records = damaged = 0
    while offset < end:
        piece = log.read(offset, PIECE_BYTES, up_to=end, at_least_one=True)
        if piece.file is None:
            break
        data = await loop.run_in_executor(executor, piece.file.read, piece.position, piece.size)
        if len(data) < piece.size:
            raise StorageError(f"{piece.file.path}: ends before byte {piece.position + piece.size}")
        replayed = await slicer.finish(_replay_piece(data, shard, decode))
        records += replayed.records
        damaged += replayed.damaged
        offset = piece.next_offset
    return Replayed(records, damaged)


def _replay_piece(data: bytes, shard: Shard, decode: Decoder) -> Work[Replayed]:
    records = damaged = 0
    for header, batch in batches_in(data):
        if not is_intact(batch):
            # The content is unknown: no coordinator is better than one that has lost a decision.
            raise KafkaError(
                ErrorCode.corrupt_message, f"the batch at offset {header.base_offset} is damaged (CRC mismatch)"
            )
        if header.is_control:
            _replay_marker(header, batch, shard)
        else:
            replayed = yield from _replay_batch(header, batch, shard, decode)
            records += replayed.records
            damaged += replayed.damaged
        yield
    return Replayed(records, damaged)


def _replay_batch(header: BatchHeader, batch: bytes, shard: Shard, decode: Decoder) -> Work[Replayed]:
    producer = ProducerStamp(header.producer_id, header.producer_epoch) if header.is_transactional else None
    records = damaged = 0
    for record in iterate_records(batch):
        records += 1
        if not records % RECORDS_AT_ONCE:
            yield
        try:
            decoded = None if record.key is None else decode(record.key, record.value)
        except ValueError:
            damaged += 1
            continue
        if decoded is not None:
            shard.replay(record.offset, decoded[0], decoded[1], producer)
    return Replayed(records, damaged)


def _replay_marker(header: BatchHeader, batch: bytes, shard: Shard) -> None:
    marker = read_marker(batch)
    if marker is not None:
        producer = ProducerStamp(header.producer_id, header.producer_epoch)
        shard.replay_end_of_transaction(producer, is_committed=marker.committed)
