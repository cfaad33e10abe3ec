"""Offsets of deleted topics: they mean nothing to a later topic of the same name.

A timer's operation: it begins anew when something cannot be written, comes to shards that are still being loaded when a
topic goes, and does little at a time. Topics are told by name; that one is not in the image of the cluster is no sign,
for the image may be behind.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.groups.offset_scan import Piece, next_pieces, pieces
from skep.coordination.shard import CoordinatorRecord, Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

_TIMER = ("forget offsets",)
_NOW_MS = 0


class Forgetting(NamedTuple):
    """How far a scan for the offsets of ``topics`` has come."""

    topics: frozenset[str]
    scan: Iterator[Piece]


def forget_topics(shard: "GroupShard", topics: frozenset[str]) -> None:
    """These have been deleted; there may be topics of the same names again by the time that this is carried out."""
    shard.gone_topics |= topics
    shard.timers.schedule(_TIMER, _NOW_MS, _forget)


def _forget(shard: "GroupShard") -> Outcome:
    # The scan is put back when the records are written. If they cannot be, the next try begins anew.
    under_way, shard.forgetting = shard.forgetting, None
    topics, scan = under_way or Forgetting(frozenset(shard.gone_topics), pieces(shard))
    looked_at = list(next_pieces(scan))
    if not looked_at:
        # Topics that went meanwhile may have offsets in groups that were passed by then.
        shard.gone_topics -= topics
        if shard.gone_topics:
            shard.timers.schedule(_TIMER, _NOW_MS, _forget)
        return Outcome()
    records = [
        CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)
        for group_id, places, _ in looked_at
        for topic, partition in places
        if topic in topics
    ]

    def then() -> None:
        shard.forgetting = Forgetting(topics, scan)
        shard.timers.schedule(_TIMER, _NOW_MS, _forget)

    return Outcome(records=records, then=then)
