"""Matches the regular expressions of a consumer group with topics, when one operation is not enough."""

import functools

from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import Outcome

_NOW_MS = 0


def schedule_matching(table: GroupTable, group: ConsumerGroup) -> None:
    """To be called after a change of the group, which may have started to match expressions."""
    if group.matches is not None:
        key = ("match topics", group.group_id)
        table.timers.schedule(key, _NOW_MS, functools.partial(_go_on, group_id=group.group_id))


def _go_on(table: GroupTable, *, group_id: str) -> Outcome:
    group = table.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or group.matches is None:
        return Outcome()
    if group.is_empty:
        group.matches = None
        return Outcome()
    group.matches.go_on()
    if not group.matches.is_done:
        schedule_matching(table, group)
        return Outcome()
    # With the topics that were matched, not with the current ones. The next heartbeat sees what has changed since.
    change = GroupChange(group, group.matches.topics, table.clock)
    change.bump_epoch(always=change.resolve_regexes())

    def then() -> None:
        change.remember(group)
        schedule_matching(table, group)

    return Outcome(records=change.records, then=then)
