"""Matching a consumer group's expressions with topics, when that is too long for the operation that has begun it."""

import functools
from typing import TYPE_CHECKING

from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.shard import Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

_NOW_MS = 0


def schedule_matching(shard: "GroupShard", group: ConsumerGroup) -> None:
    """To be called when a change of the group has taken place, which may have begun to match expressions."""
    if group.matches is not None:
        key = ("match topics", group.group_id)
        shard.timers.schedule(key, _NOW_MS, functools.partial(_go_on, group_id=group.group_id))


def _go_on(shard: "GroupShard", *, group_id: str) -> Outcome:
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or group.matches is None:
        return Outcome()
    if group.is_empty:
        group.matches = None
        return Outcome()
    group.matches.go_on()
    if not group.matches.is_done:
        schedule_matching(shard, group)
        return Outcome()
    # With the topics that were matched, not with those of now. What has changed since is the next heartbeat's matter.
    change = GroupChange(group, group.matches.topics, shard.clock)
    change.bump_epoch(always=change.resolve_regexes())

    def then() -> None:
        change.remember(group)
        schedule_matching(shard, group)

    return Outcome(records=change.records, then=then)
