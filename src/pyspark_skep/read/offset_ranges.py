"""Which offsets a task reads: ranges cut and limited, by arithmetic alone.

The rules are those of Spark's Kafka source (``KafkaOffsetRangeCalculator`` and the rate limit of its micro-batches),
so that a query has the same tasks with either.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from pyspark_skep.read.positions import TopicPartition


class OffsetRange(NamedTuple):
    """Offsets of one partition, from ``start`` up to and without ``end``."""

    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange], *, min_partitions: int = 0, max_records_per_partition: int = 0
) -> list[OffsetRange]:
    """The ranges with something in them, cut where the options ask for it; 0 is not asked for.

    First none is left with more than ``max_records_per_partition`` offsets. If these are still fewer than
    ``min_partitions``, the large ones are cut in proportion to their size, about as often as is missing: ranges too
    small to be cut count as one each, and do not take part in the proportion.
    """
    pieces = [piece for piece in ranges if piece.size > 0]
    if max_records_per_partition:
        pieces = [part for piece in pieces for part in cut(piece, math.ceil(piece.size / max_records_per_partition))]
    if min_partitions <= len(pieces):
        return pieces
    total = sum(piece.size for piece in pieces)
    whole = [piece for piece in pieces if _share(piece.size, total, min_partitions) == 1]
    total_to_cut = total - sum(piece.size for piece in whole)
    parts_to_cut = max(min_partitions - len(whole), 1)
    kept = set(whole)
    return [
        part
        for piece in pieces
        for part in cut(piece, 1 if piece in kept else _share(piece.size, total_to_cut, parts_to_cut))
    ]


def cut(piece: OffsetRange, parts: int) -> list[OffsetRange]:
    """``piece`` in this many parts that differ by at most one offset, without those that would be empty."""
    found = []
    start, remaining = piece.start, piece.size
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        if size:
            found.append(piece._replace(start=start, end=start + size))
        start += size
    return found


def _share(size: int, total: int, parts: int) -> int:
    # Java's Math.round, which Spark uses: halves go up. Python's round takes them to the even neighbour.
    return max(math.floor(size / total * parts + 0.5), 1)


def limit_offsets(
    limit: int, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where to end instead of at ``end``, so that about ``limit`` offsets are read, shared out by what each has.

    A partition with little is given at least one offset, so a few more than ``limit`` may be read. One that has
    nothing, or fewer than nothing (its log was cut), ends where ``end`` says.
    """
    sizes = {key: end[key] - begin[key] for key in end if end[key] > begin[key]}
    total = sum(sizes.values())
    limited = dict(end)
    for key, size in sizes.items():
        share = limit * (size / total)
        limited[key] = min(end[key], begin[key] + (math.ceil(share) if share < 1 else math.floor(share)))
    return limited
