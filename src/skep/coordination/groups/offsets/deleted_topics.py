"""Deletes the offsets of deleted topics: they mean nothing to a later topic of the same name.

This is the operation of a timer. It reaches shards that are still loading when a topic is deleted, it does little at a
time, and it starts again when its tombstones cannot be written. Topics are identified by name. A topic that is missing
in the cluster image is not taken for deleted, because the image may be behind.
"""

from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.offset_scan import DeletedTopicScan, next_pieces, scan_offsets
from skep.coordination.shard import CoordinatorRecord, Outcome

_TIMER = ("delete offsets of deleted topics",)
_NOW_MS = 0


def delete_offsets_of(table: GroupTable, topics: frozenset[str]) -> None:
    """Schedules the deletion of all offsets of ``topics``.

    Topics of the same names may exist again by the time it runs; their offsets are deleted too.
    """
    table.deleted_topics |= topics
    table.timers.schedule(_TIMER, _NOW_MS, _delete_some)


def _delete_some(table: GroupTable) -> Outcome:
    # The scan is put back once the tombstones are written. If they cannot be, the next attempt starts a new scan.
    scan, table.deleted_topic_scan = table.deleted_topic_scan, None
    if scan is None:
        scan = DeletedTopicScan(frozenset(table.deleted_topics), scan_offsets(table.groups, table.offsets))
    visited = next_pieces(scan.pieces)
    if not visited:
        # Topics deleted during the scan may have offsets in groups that it had already passed.
        table.deleted_topics -= scan.topics
        if table.deleted_topics:
            table.timers.schedule(_TIMER, _NOW_MS, _delete_some)
        return Outcome()
    records = [
        CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)
        for group_id, places, _ in visited
        for topic, partition in places
        if topic in scan.topics
    ]

    def then() -> None:
        table.deleted_topic_scan = scan
        table.timers.schedule(_TIMER, _NOW_MS, _delete_some)

    return Outcome(records=records, then=then)
