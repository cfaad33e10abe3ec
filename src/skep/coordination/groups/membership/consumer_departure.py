"""How members leave a consumer group: because they say so, for a while if they are static, or because they are silent.

A member is watched by two timers: its session, which every heartbeat puts off, and, while it has been told to give
partitions up, the rebalance timeout that it named when it joined. When one of them goes off the member is fenced: it is
out of the group, and told so when it comes back.
"""

import functools
import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skep.base.config.group_config import GroupConfig, group_config
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import (
    NOTHING,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
)
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.consumer.member_timers import REBALANCE, SESSION, forget_timers, timer_key
from skep.coordination.groups.migration import downgrade as migration
from skep.coordination.groups.migration import large_downgrade as downgrade
from skep.coordination.shard import Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)


def leave(shard: "GroupShard", group_id: str, member_id: str, member_epoch: int, instance_id: str | None) -> Outcome:
    """The member goes; a static one with epoch -2 comes back before its session ends, and keeps its partitions."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    response = {"member_id": member_id, "member_epoch": member_epoch}
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = check_static(group, instance_id, member_id)
        if member_epoch == STATIC_LEAVING_EPOCH:
            return Outcome(response, [_left_for_a_while(member).assignment_record(group_id)])
    outcome = remove(shard, group, [member])
    outcome.response = response
    return outcome


def check_static(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def _left_for_a_while(member: ConsumerMember) -> ConsumerMember:
    """What it was giving up it has given up. What it keeps counts as held from the start by whoever comes for it."""
    return replace(
        member,
        member_epoch=STATIC_LEAVING_EPOCH,
        assigned={topic: dict.fromkeys(epochs, 0) for topic, epochs in member.assigned.items()},
        pending_revocation=NOTHING,
    )


def remove(shard: "GroupShard", group: ConsumerGroup, members: Sequence[ConsumerMember]) -> Outcome:
    """Takes members out of the group, which may thereby become a classic group again (KIP-848, downgrade)."""
    if not members:
        return Outcome()
    change = GroupChange(group, shard.image().topics, shard.clock)
    for member in members:
        change.remove_member(member.member_id)
    is_due = migration.is_downgrade_due(shard, change.group)
    if is_due and downgrade.is_large(change.group) and not downgrade.is_put_off(shard, group.group_id):
        outcome = Outcome(records=change.records, then=functools.partial(_begin_downgrade, shard, group))
    elif is_due and not downgrade.is_large(change.group):
        outcome = migration.downgrade(shard, group, change.group, reason="the last member of the new protocol is gone")
    else:
        change.members_have_left()
        outcome = Outcome(records=change.records)
    after = outcome.then

    def then() -> None:
        for member in members:
            forget_timers(shard.timers, group.group_id, member.member_id)
        if group.is_empty:
            group.seen_topics = None
        if after is not None:
            after()

    outcome.then = then
    return outcome


def _begin_downgrade(shard: "GroupShard", group: ConsumerGroup) -> None:
    group.owes_epoch = True
    downgrade.begin(shard, group)


# Timers.


def config_of(shard: "GroupShard", group_id: str) -> GroupConfig:
    return group_config(shard.image().group_config(group_id), shard.settings())


def watch_member(shard: "GroupShard", group_id: str, member: ConsumerMember) -> None:
    """Begins the session of a member anew, and its time to revoke if it is to."""
    watch_session(shard, group_id, member, config_of(shard, group_id).consumer_session_timeout_ms)
    watch_revocation(shard, group_id, member)


def watch_session(shard: "GroupShard", group_id: str, member: ConsumerMember, session_timeout_ms: int) -> None:
    if member.classic is not None:
        session_timeout_ms = member.classic.session_timeout_ms
    key = timer_key(SESSION, group_id, member.member_id)
    operation = functools.partial(
        fence, group_id=group_id, member_id=member.member_id, why="its session has expired", timer=key
    )
    shard.timers.schedule(key, session_timeout_ms, operation)


def watch_revocation(shard: "GroupShard", group_id: str, member: ConsumerMember) -> None:
    """Members of the classic protocol have other timers: for joining again, and for asking what they get."""
    key = timer_key(REBALANCE, group_id, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
        shard.timers.schedule(
            key,
            max(0, member.rebalance_timeout_ms),
            functools.partial(
                _fence_at_epoch, group_id=group_id, member_id=member.member_id, member_epoch=member.member_epoch
            ),
        )
    else:
        shard.timers.cancel(key)


def fence(shard: "GroupShard", *, group_id: str, member_id: str, why: str, timer: Hashable) -> Outcome:
    """A timer of the member has gone off; by then it, or its group, may be gone.

    A timer that runs again says that this is a second attempt, its records having been refused, and too late.
    """
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or member_id not in group.members or timer in shard.timers:
        return Outcome()
    logger.info("group %s: member %s is out: %s", group_id, member_id, why)
    return remove(shard, group, [group.members[member_id]])


def _fence_at_epoch(shard: "GroupShard", *, group_id: str, member_id: str, member_epoch: int) -> Outcome:
    group = shard.groups.get(group_id)
    member: Any = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
    if member is None or member.member_epoch != member_epoch or member.state is not MemberState.UNREVOKED_PARTITIONS:
        return Outcome()
    key, why = timer_key(REBALANCE, group_id, member_id), f"it has not left epoch {member_epoch} in time"
    return fence(shard, group_id=group_id, member_id=member_id, why=why, timer=key)
