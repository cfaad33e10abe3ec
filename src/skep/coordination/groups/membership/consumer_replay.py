"""Replays the records of consumer groups, and starts the timers of their members once all are replayed."""

from collections.abc import Callable
from typing import Any

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
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.membership.consumer_departure import watch_member
from skep.coordination.groups.migration import large_downgrade
from skep.coordination.groups.migration.downgrade import is_downgrade_due

MEMBERS_AT_ONCE = 100
"""Sessions started without a pause."""


def _replay(table: GroupTable, key: Any, value: Any) -> None:
    group = table.groups.get(key.group_id)
    if not isinstance(group, ConsumerGroup):
        # A tombstone of a group that is already deleted, or else the first record of a group that may follow one of
        # another kind with the same id.
        if value is None:
            return
        group = table.groups[key.group_id] = ConsumerGroup(key.group_id)
    if value is None and type(key) is ConsumerGroupMetadataKey:
        del table.groups[key.group_id]
    else:
        group.replay(key, value)


REPLAYS: dict[type, Callable[[GroupTable, Any, Any], None]] = dict.fromkeys(
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


def loaded(table: GroupTable) -> Work[None]:
    """Gives every member a full session and a full rebalance timeout: it had no coordinator while the shard loaded."""
    for group in list(table.groups.values()):
        if isinstance(group, ConsumerGroup):
            for number, member in enumerate(group.members.values()):
                watch_member(table, group.group_id, member)
                if not number % MEMBERS_AT_ONCE:
                    yield
            if large_downgrade.is_large(group) and is_downgrade_due(table, group):
                # The previous coordinator did not complete the downgrade. The log does not say whether members left.
                group.is_epoch_due = True
                large_downgrade.begin(table, group)
        yield
