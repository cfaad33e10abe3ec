"""Offsets of deleted topics: they mean nothing to a later topic of the same name.

A timer's operation: it is tried again when it cannot be written, comes to shards that are still being loaded when a
topic goes, and does little at a time. Topics are told by name; that one is not in the image of the cluster is no sign,
for the image may be behind.
"""

from typing import TYPE_CHECKING

from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.shard import CoordinatorRecord, Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.shard import GroupShard

RECORDS_AT_ONCE = 1000
_TIMER = ("forget offsets",)
_SOON_MS = 1


def forget_topics(shard: "GroupShard", topics: frozenset[str]) -> None:
    """These have been deleted; there may be topics of the same names again by the time that this is carried out."""
    shard.gone_topics |= topics
    shard.timers.schedule(_TIMER, 0, _forget)


def _forget(shard: "GroupShard") -> Outcome:
    records: list[CoordinatorRecord] = []
    for group in shard.offsets.all_groups():
        for topic, partition in shard.offsets.partitions_of_group(group):
            if topic in shard.gone_topics:
                records.append(CoordinatorRecord(OffsetCommitKey(group, topic, partition), None))
                if len(records) == RECORDS_AT_ONCE:
                    return Outcome(records=records, then=lambda: shard.timers.schedule(_TIMER, _SOON_MS, _forget))
    return Outcome(records=records, then=shard.gone_topics.clear)
