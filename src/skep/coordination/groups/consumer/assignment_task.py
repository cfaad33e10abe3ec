"""Computes and writes the target assignment of a large consumer or share group, in operations of its own."""

import functools
from typing import Any

from skep.coordination.groups.consumer.modern_change import ASSIGNMENT_PAUSE
from skep.coordination.groups.consumer.modern_group import ModernGroup
from skep.coordination.groups.consumer.target_assignment import TargetAssignment
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import Outcome

_NOW_MS = 0


def schedule_assigning(table: GroupTable, group: ModernGroup[Any]) -> None:
    """To be called after a change of the group, which may have started an assignment."""
    if group.assigning is not None:
        key = ("assign", group.group_id)
        table.timers.schedule(key, _NOW_MS, functools.partial(_go_on, group_id=group.group_id))


def _go_on(table: GroupTable, *, group_id: str) -> Outcome:
    group = table.groups.get(group_id)
    if not isinstance(group, ModernGroup) or group.assigning is None:
        return Outcome()
    assigning = group.assigning
    if assigning.unwritten is None:
        assigning.go_on()
        schedule_assigning(table, group)
        return Outcome()
    if not assigning.unwritten:
        return _end(table, group, assigning)
    records = [
        group.target_record(member_id, partitions)
        for member_id, partitions in assigning.next_targets(group.targets)
        if member_id in group.members
    ]

    def then() -> None:
        assigning.written()
        schedule_assigning(table, group)

    return Outcome(records=records, then=then)


def _end(table: GroupTable, group: ModernGroup[Any], assigning: TargetAssignment) -> Outcome:
    """Writes the assignment epoch once all targets are written.

    It is not written if the group has a newer one, or if the assignment was not made for all members of its epoch: a
    static member may have been replaced in the same epoch, and its successor has no target.
    """
    is_of_members = group.group_epoch > assigning.epoch or group.members.keys() == assigning.members
    if assigning.epoch <= group.assignment_epoch or not is_of_members:
        group.assigning = None
        return Outcome()

    def then() -> None:
        group.assigning = None
        group.assignable_at = table.clock.monotonic() + assigning.spent_s * ASSIGNMENT_PAUSE

    return Outcome(records=[group.assignment_epoch_record(assigning.epoch, assigning.assigned_at)], then=then)
