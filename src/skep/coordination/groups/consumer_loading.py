"""Replaying the records of consumer groups, and what is to be done when all have been."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skep.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from skep.coordination.groups.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer_leaving import watch_member
from skep.coordination.shard import CoordinatorRecord

if TYPE_CHECKING:
    from skep.coordination.groups.shard import GroupShard


def _replay(shard: "GroupShard", key: Any, value: Any) -> None:
    group = shard.groups.get(key.group_id)
    if not isinstance(group, ConsumerGroup):
        # A group of another kind with the name was there before, or this is a deletion of what is gone already.
        if value is None:
            return
        group = shard.groups[key.group_id] = ConsumerGroup(key.group_id)
    if value is None and type(key) is ConsumerGroupMetadataKey:
        del shard.groups[key.group_id]
    else:
        group.replay(key, value)


REPLAYS: dict[type, Callable[["GroupShard", Any, Any], None]] = dict.fromkeys(
    (
        ConsumerGroupMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupRegularExpressionKey,
    ),
    _replay,
)


def loaded(shard: "GroupShard") -> list[CoordinatorRecord]:
    """Every member gets a whole session, and a whole time to revoke: it may have been silent only because we were."""
    for group in shard.groups.values():
        if isinstance(group, ConsumerGroup):
            for member in group.members.values():
                watch_member(shard, group.group_id, member)
    return []
