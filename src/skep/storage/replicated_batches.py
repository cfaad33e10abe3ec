"""Looking through what a leader has answered to a follower, before any of it is believed."""

from typing import NamedTuple

from crc32c import crc32c

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import CRC_END, HEADER_SIZE, BatchHeader, read_header


class ReplicatedBatches(NamedTuple):
    """Good batches that lie one behind the other, and what is wrong with the one that follows them, if it is."""

    batches: list[tuple[int, BatchHeader]]
    """Position and header of each."""
    problem: KafkaError | None


def look_through(
    records: memoryview, end_offset: Offset, latest_epoch: LeaderEpoch, *, may_overlap: bool
) -> ReplicatedBatches:
    """The whole batches that belong behind ``end_offset``, where the last batch was of ``latest_epoch``.

    Those that end below it are skipped at the beginning. A first batch that contains ``end_offset`` is taken if it
    ``may_overlap``. One that is cut off by the end of ``records`` is no problem, if it is not the only one.
    """
    batches: list[tuple[int, BatchHeader]] = []
    position, next_offset, epoch = 0, end_offset, latest_epoch
    while len(records) - position >= HEADER_SIZE:
        header = read_header(records, position)
        size = header.size
        if header.magic != 2 or size < HEADER_SIZE or header.last_offset_delta < 0 or header.base_offset < 0:
            return ReplicatedBatches(batches, _corrupt(f"no record batch at byte {position}"))
        if size > len(records) - position:
            break
        if header.crc != crc32c(records[position + CRC_END : position + size]):
            return ReplicatedBatches(batches, _corrupt(f"the CRC32C of batch {header.base_offset} is not right"))
        if batches or header.last_offset >= next_offset:
            problem = None
            if header.base_offset < next_offset and (batches or not may_overlap):
                problem = f"batch {header.base_offset} to {header.last_offset} begins before offset {next_offset}"
            elif header.partition_leader_epoch < max(epoch, 0):
                problem = f"batch {header.base_offset} is of epoch {header.partition_leader_epoch}, after {epoch}"
            if problem is not None:
                return ReplicatedBatches(batches, _corrupt(problem))
            batches.append((position, header))
            next_offset, epoch = header.next_offset, header.partition_leader_epoch
        position += size
    if position == 0 and len(records):
        return ReplicatedBatches([], _corrupt(f"{len(records)} bytes without one whole batch"))
    return ReplicatedBatches(batches, None)


def _corrupt(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, f"the leader's answer is damaged: {detail}")
