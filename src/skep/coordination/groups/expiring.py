"""Offsets that nobody has used for ``offsets.retention.minutes``, and groups that are left without any.

Of a group with members nothing expires that they are subscribed to. An offset that a transaction is about to replace
stays until that has ended.
"""

from typing import TYPE_CHECKING

from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.groups.group import Group
from skep.coordination.groups.offsets import CommittedOffset
from skep.coordination.shard import CoordinatorRecord, Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.shard import GroupShard

RECORDS_AT_ONCE = 1000
"""Deleted in one write; the rest follows at once, with a turn for everybody else in between."""
_SOON_MS = 1
_TIMER = ("expire offsets",)


def schedule_expiry(shard: "GroupShard") -> None:
    shard.timers.schedule(_TIMER, shard.settings().offsets_retention_check_interval_ms, expire)


def expire(shard: "GroupShard") -> Outcome:
    """The timer's operation: tombstones for what has expired."""
    records: list[CoordinatorRecord] = []
    for group_id in [*shard.groups, *(group for group in shard.offsets.groups() if group not in shard.groups)]:
        records.extend(_expired(shard, group_id, shard.groups.get(group_id)))
        if len(records) >= RECORDS_AT_ONCE:
            # Each group is left whole or goes whole, so the next round begins with the others.
            return Outcome(records=records, then=lambda: shard.timers.schedule(_TIMER, _SOON_MS, expire))
    return Outcome(records=records, then=lambda: schedule_expiry(shard))


def _expired(shard: "GroupShard", group_id: str, group: Group | None) -> list[CoordinatorRecord]:
    offsets = shard.offsets.of_group(group_id)
    going = [
        CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)
        for (topic, partition), offset in offsets.items()
        if _has_expired(shard, group, topic, offset) and not shard.offsets.is_pending(group_id, topic, partition)
    ]
    is_bare = len(going) == len(offsets) and not shard.offsets.has_pending(group_id)
    if group is not None and group.is_empty and is_bare and not group.waiters():
        going.extend(group.tombstones())
    return going


def _has_expired(shard: "GroupShard", group: Group | None, topic: str, offset: CommittedOffset) -> bool:
    since: int | None = offset.commit_timestamp
    if group is not None:
        if not group.is_empty and (not group.knows_subscriptions() or group.is_subscribed_to(topic)):
            return False
        since = group.offsets_expire_since(offset.commit_timestamp)
    retention_ms = shard.settings().offsets_retention_minutes * 60_000
    return since is not None and shard.clock.now_ms() - since >= retention_ms
