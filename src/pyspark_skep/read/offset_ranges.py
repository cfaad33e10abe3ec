"""The offsets that tasks read: ranges are split and limited here, without I/O.

The rules are those of Spark's Kafka source (``KafkaOffsetRangeCalculator`` and the rate limit of its micro-batches),
so that a query has the same tasks with either.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from skep.base.ids import TopicPartition


class OffsetRange(NamedTuple):
    """Offsets of one partition from ``start`` (included) to ``end`` (excluded)."""

    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange], *, min_partitions: int = 0, max_records_per_partition: int = 0
) -> list[OffsetRange]:
    """Returns the ranges that are not empty, split as the options say; an option of 0 is not set.

    First, ranges are split so that none has more than ``max_records_per_partition`` offsets. If there are still fewer
    than ``min_partitions``, the large ones are split in proportion to their size. Ranges too small to be split count as
    one each and are left out of the proportion.
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
    """Splits ``piece`` into this many parts whose sizes differ by at most one. Empty parts are left out."""
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
    # As Java's Math.round, which Spark uses: halves round up. Python's round() rounds them to even.
    return max(math.floor(size / total * parts + 0.5), 1)


def limit_offsets(
    limit: int, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Returns ends that limit a read to about ``limit`` offsets, in proportion to what each partition has.

    A partition with records gets at least one offset, so a few more than ``limit`` may be read. A partition without
    new records, also one whose log was truncated, keeps its ``end``.
    """
    sizes = {key: end[key] - begin[key] for key in end if end[key] > begin[key]}
    total = sum(sizes.values())
    limited = dict(end)
    for key, size in sizes.items():
        share = limit * (size / total)
        limited[key] = min(end[key], begin[key] + (math.ceil(share) if share < 1 else math.floor(share)))
    return limited
