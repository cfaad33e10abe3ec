"""Keeps ``__share_group_state`` short: decides what may be deleted from the start of its partitions.

The topic is not compacted, because a state is a snapshot and the updates behind it. Everything before the oldest
snapshot that is still needed may be deleted (Kafka: ShareCoordinatorOffsetsManager). A share partition without writes
would keep all records after its snapshot, so a timer writes the snapshot again at the end of the log, if enough records
can be deleted then. The same scan deletes the states of topics that no longer exist.
"""

from skep.coordination.shard import CoordinatorRecord, Outcome
from skep.coordination.share.share_records import ShareSnapshotKey
from skep.coordination.share.share_table import ShareTable

LOOKED_AT_ONCE = 1_000
"""Share partitions checked by one operation, of the hundred thousand that there may be."""
RECORDS_AT_ONCE = 100
BATCHES_AT_ONCE = 1_000
"""State batches in the snapshots that one operation writes; one snapshot may have more."""
_NOW_MS = 0
_SCAN = ("scan share partitions",)


def needed_from(table: ShareTable) -> Outcome:
    """An operation whose response is the offset before which no record is needed.

    The response is sent when the snapshots that replace those records are committed. Deleting records before that could
    leave a new leader with neither.
    """
    oldest = next(iter(table.states.values()), None)
    return Outcome(table.next_offset if oldest is None else oldest.snapshot_offset)


def schedule_scan(table: ShareTable) -> None:
    table.timers.schedule(_SCAN, table.config.share_cold_snapshot_interval_ms, scan)


def scan(table: ShareTable) -> Outcome:
    """The timer's operation: snapshots of share partitions without a recent one, tombstones for those whose topic does
    not exist."""
    # The rest is put back when the records are written. If they cannot be written, the next try begins a new scan.
    left, table.unscanned = table.unscanned or list(reversed(table.states)), []
    now_ms = table.clock.now_ms()
    latest_ms = now_ms - table.config.share_cold_snapshot_interval_ms
    is_long = _is_long(table)
    records: list[CoordinatorRecord] = []
    batches = 0
    for _ in range(min(LOOKED_AT_ONCE, len(left))):
        key = left.pop()
        state = table.states.get(key)
        if state is None:
            continue
        was_orphaned, state.is_orphaned = state.is_orphaned, not table.has_partition(key)
        if state.is_orphaned:
            # Not before the second scan: this broker may not have received a new topic yet that others know.
            if was_orphaned:
                records.append(CoordinatorRecord(ShareSnapshotKey(key), None))
        elif is_long and state.write_timestamp <= latest_ms:
            records.append(CoordinatorRecord(ShareSnapshotKey(key), state.snapshot(now_ms)))
            batches += len(state.batches)
        if len(records) >= RECORDS_AT_ONCE or batches >= BATCHES_AT_ONCE:
            break

    def then() -> None:
        table.unscanned = left
        if left:
            table.timers.schedule(_SCAN, _NOW_MS, scan)
        else:
            schedule_scan(table)

    return Outcome(records=records, then=then)


def _is_long(table: ShareTable) -> bool:
    """Returns whether less than half of the records are the last snapshots. When all of them are, the scans write
    nothing more until there are as many other records."""
    oldest = next(iter(table.states.values()), None)
    return oldest is not None and table.next_offset - oldest.snapshot_offset > 2 * len(table.states)
