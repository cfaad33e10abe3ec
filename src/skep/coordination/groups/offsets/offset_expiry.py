"""Expires offsets that were not used for ``offsets.retention.minutes``, and groups that are left without offsets.

In a group with members, the offsets of topics that a member subscribes to do not expire. An offset that an open
transaction is about to replace stays until the transaction has ended.
"""

from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.groups.committed_offsets import CommittedOffset
from skep.coordination.groups.group import Group
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.offset_scan import Piece, next_pieces, scan_offsets
from skep.coordination.shard import CoordinatorRecord, Outcome

_NOW_MS = 0
_TIMER = ("expire offsets",)


def schedule_expiry(table: GroupTable) -> None:
    table.timers.schedule(_TIMER, table.config.offsets_retention_check_interval_ms, expire)


def expire(table: GroupTable) -> Outcome:
    """The timer's operation: tombstones for what has expired, among as many offsets as one operation may visit."""
    # The scan is put back once the tombstones are written. If they cannot be, the next attempt starts a new scan.
    scan, table.expiry_scan = table.expiry_scan or scan_offsets(table.groups, table.offsets), None
    visited = next_pieces(scan)
    if not visited:
        return Outcome(then=lambda: schedule_expiry(table))
    expired_before = table.clock.now_ms() - table.config.offsets_retention_minutes * 60_000
    records = [record for piece in visited for record in _tombstones(table, piece, expired_before)]

    def then() -> None:
        table.expiry_scan = scan
        table.timers.schedule(_TIMER, _NOW_MS, expire)

    return Outcome(records=records, then=then)


def _tombstones(table: GroupTable, piece: Piece, expired_before: int) -> list[CoordinatorRecord]:
    group_id, group, offsets = piece.group_id, table.groups.get(piece.group_id), table.offsets.of_group(piece.group_id)
    has_pending = table.offsets.has_pending(group_id)
    tombstones = [
        CoordinatorRecord(OffsetCommitKey(group_id, *place), None)
        for place in piece.places
        if (offset := offsets.get(place)) is not None
        and _has_expired(group, place[0], offset, expired_before)
        and not (has_pending and table.offsets.is_pending(group_id, *place))
    ]
    has_none_left = piece.is_last and len(tombstones) == len(offsets) and not has_pending
    if group is not None and group.commits_offsets and group.is_empty and has_none_left and not group.waiters():
        tombstones.extend(group.tombstones())
    return tombstones


def _has_expired(group: Group | None, topic: str, offset: CommittedOffset, expired_before: int) -> bool:
    since: int | None = offset.commit_timestamp
    if group is not None:
        if not group.is_empty and (not group.can_read_subscriptions() or group.is_subscribed_to(topic)):
            return False
        since = group.offsets_expire_since(offset.commit_timestamp)
    return since is not None and since <= expired_before
