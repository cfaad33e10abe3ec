"""Going through the offsets of all groups of a shard, a piece at a time: an operation for each piece.

Groups and offsets come and go between two operations. What has come since the scan began is not looked at; what has
gone may still be named.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from skep.coordination.groups.committed_offsets import Place

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

PLACES_AT_ONCE = 1_000


class Piece(NamedTuple):
    """Partitions of a group that have an offset, or will have one when a transaction commits."""

    group_id: str
    places: list[Place]
    is_last: bool
    """Of this group."""


def pieces(shard: "GroupShard") -> Iterator[Piece]:
    """Each group has at least one piece, also one without offsets."""
    for group_id in [*shard.groups, *(name for name in shard.offsets.all_groups() if name not in shard.groups)]:
        places = shard.offsets.partitions_of_group(group_id)
        for start in range(0, max(1, len(places)), PLACES_AT_ONCE):
            end = start + PLACES_AT_ONCE
            yield Piece(group_id, places[start:end], is_last=end >= len(places))


def next_pieces(scan: Iterator[Piece]) -> Iterator[Piece]:
    """As many pieces as one operation may look at; none when the scan has ended."""
    looked_at = 0
    for piece in scan:
        yield piece
        looked_at += 1 + len(piece.places)
        if looked_at >= PLACES_AT_ONCE:
            return
