"""Making and writing the target assignment of a large consumer group, in operations of its own."""

import functools
from typing import TYPE_CHECKING

from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.group_change import ASSIGNMENT_PAUSE, assignment_epoch_record, target_record
from skep.coordination.groups.consumer.target_assignment import TargetAssignment
from skep.coordination.shard import Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

_NOW_MS = 0


def schedule_assigning(shard: "GroupShard", group: ConsumerGroup) -> None:
    """To be called when a change of the group has taken place, which may have begun to assign."""
    if group.assigning is not None:
        key = ("assign", group.group_id)
        shard.timers.schedule(key, _NOW_MS, functools.partial(_go_on, group_id=group.group_id))


def _go_on(shard: "GroupShard", *, group_id: str) -> Outcome:
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or group.assigning is None:
        return Outcome()
    assigning = group.assigning
    if assigning.unwritten is None:
        assigning.go_on()
        schedule_assigning(shard, group)
        return Outcome()
    if not assigning.unwritten:
        return _end(shard, group, assigning)
    records = [
        target_record(group_id, member_id, partitions)
        for member_id, partitions in assigning.next_targets(group.targets)
        if member_id in group.members
    ]

    def then() -> None:
        assigning.written()
        schedule_assigning(shard, group)

    return Outcome(records=records, then=then)


def _end(shard: "GroupShard", group: ConsumerGroup, assigning: TargetAssignment) -> Outcome:
    """All targets are written. They count if they are newer than those before, and made for the members of the epoch.

    A static member may have been replaced in the same epoch: its successor has no part in this assignment.
    """
    is_of_members = group.group_epoch > assigning.epoch or group.members.keys() == assigning.members
    if assigning.epoch <= group.assignment_epoch or not is_of_members:
        group.assigning = None
        return Outcome()

    def then() -> None:
        group.assigning = None
        group.assignable_at = shard.clock.monotonic() + assigning.spent_s * ASSIGNMENT_PAUSE

    return Outcome(records=[assignment_epoch_record(group.group_id, assigning.epoch, shard.clock.now_ms())], then=then)
