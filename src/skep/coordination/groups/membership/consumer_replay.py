"""Replaying the records of consumer groups, and what is to be done when all have been."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skep.base.loop.slicer import Work
from skep.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.membership.consumer_departure import watch_member
from skep.coordination.groups.migration import large_downgrade as downgrade
from skep.coordination.groups.migration.downgrade import is_downgrade_due

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

MEMBERS_AT_ONCE = 100
"""Whose sessions begin without a pause."""


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


def loaded(shard: "GroupShard") -> Work[None]:
    """Every member gets a whole session, and a whole time to revoke: it may have been silent only because we were."""
    for group in list(shard.groups.values()):
        if isinstance(group, ConsumerGroup):
            for number, member in enumerate(group.members.values()):
                watch_member(shard, group.group_id, member)
                if not number % MEMBERS_AT_ONCE:
                    yield
            if downgrade.is_large(group) and is_downgrade_due(shard, group):
                # The coordinator before this one did not get so far. Whether members have left it does not say.
                group.owes_epoch = True
                downgrade.begin(shard, group)
        yield
