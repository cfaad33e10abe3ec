"""Offsets that nobody has used for ``offsets.retention.minutes``, and groups that are left without any.

Of a group with members nothing expires that they are subscribed to. An offset that a transaction is about to replace
stays until that has ended.
"""

from typing import TYPE_CHECKING

from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.groups.committed_offsets import CommittedOffset
from skep.coordination.groups.group import Group
from skep.coordination.groups.offset_scan import Piece, next_pieces, pieces
from skep.coordination.shard import CoordinatorRecord, Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

_NOW_MS = 0
_TIMER = ("expire offsets",)


def schedule_expiry(shard: "GroupShard") -> None:
    shard.timers.schedule(_TIMER, shard.settings().offsets_retention_check_interval_ms, expire)


def expire(shard: "GroupShard") -> Outcome:
    """The timer's operation: tombstones for what has expired, among as many offsets as are looked at in one go."""
    # The scan is put back when the records are written. If they cannot be, the next try begins anew.
    scan, shard.expiring = shard.expiring or pieces(shard), None
    looked_at = list(next_pieces(scan))
    if not looked_at:
        return Outcome(then=lambda: schedule_expiry(shard))
    expired_before = shard.clock.now_ms() - shard.settings().offsets_retention_minutes * 60_000
    records = [record for piece in looked_at for record in _expired(shard, piece, expired_before)]

    def then() -> None:
        shard.expiring = scan
        shard.timers.schedule(_TIMER, _NOW_MS, expire)

    return Outcome(records=records, then=then)


def _expired(shard: "GroupShard", piece: Piece, expired_before: int) -> list[CoordinatorRecord]:
    group_id, group, offsets = piece.group_id, shard.groups.get(piece.group_id), shard.offsets.of_group(piece.group_id)
    pending = shard.offsets.has_pending(group_id)
    going = [
        CoordinatorRecord(OffsetCommitKey(group_id, *place), None)
        for place in piece.places
        if (offset := offsets.get(place)) is not None
        and _has_expired(group, place[0], offset, expired_before)
        and not (pending and shard.offsets.is_pending(group_id, *place))
    ]
    is_bare = piece.is_last and len(going) == len(offsets) and not pending
    if group is not None and group.is_empty and is_bare and not group.waiters():
        going.extend(group.tombstones())
    return going


def _has_expired(group: Group | None, topic: str, offset: CommittedOffset, expired_before: int) -> bool:
    since: int | None = offset.commit_timestamp
    if group is not None:
        if not group.is_empty and (not group.knows_subscriptions() or group.is_subscribed_to(topic)):
            return False
        since = group.offsets_expire_since(offset.commit_timestamp)
    return since is not None and since <= expired_before
