"""Scans over the offsets of all groups of a shard, in pieces small enough for one operation each.

Groups and offsets change between two operations. A scan does not visit what was added after it began, and it may
still name what was removed.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from skep.coordination.groups.committed_offsets import CommittedOffsets, Place

PLACES_AT_ONCE = 1_000


class Piece(NamedTuple):
    """Partitions of a group that have an offset, or get one when a transaction commits."""

    group_id: str
    places: list[Place]
    is_last: bool
    """Whether this is the last piece of the group."""


class DeletedTopicScan(NamedTuple):
    """A scan for the offsets of ``topics``, which were deleted."""

    topics: frozenset[str]
    pieces: Iterator[Piece]


def scan_offsets(groups: Collection[str], offsets: CommittedOffsets) -> Iterator[Piece]:
    """Yields at least one piece for each group, also for a group without offsets."""
    for group_id in [*groups, *(name for name in offsets.all_groups() if name not in groups)]:
        places = offsets.partitions_of_group(group_id)
        for start in range(0, max(1, len(places)), PLACES_AT_ONCE):
            end = start + PLACES_AT_ONCE
            yield Piece(group_id, places[start:end], is_last=end >= len(places))


def next_pieces(pieces: Iterator[Piece]) -> list[Piece]:
    """Takes as many pieces as one operation may visit; none when the scan has ended."""
    taken: list[Piece] = []
    visited = 0
    for piece in pieces:
        taken.append(piece)
        visited += 1 + len(piece.places)
        if visited >= PLACES_AT_ONCE:
            break
    return taken
