"""How members leave a consumer group: on request, for a while if they are static, or because a timeout expires.

Two timers watch a member. Every heartbeat resets its session. While the member has partitions to revoke, the rebalance
timeout that it named when it joined runs too. When one of them expires the member is fenced: it is removed from the
group, and its next heartbeat is refused. When a shard is loaded, the timers of all members start anew.
"""

import functools
import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from skep.base.config.group_config import GroupConfig, group_config
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import (
    NOTHING,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
)
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.consumer.member_timers import REBALANCE, SESSION, cancel_timers, timer_key
from skep.coordination.groups.consumer.modern_replay import replays_of
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.migration import large_downgrade
from skep.coordination.groups.migration.downgrade import downgrade, is_downgrade_due
from skep.coordination.shard import Outcome

logger = logging.getLogger(__name__)

SESSIONS_AT_ONCE = 200
"""Sessions started without a pause, or in one operation after an upgrade: a millisecond."""

REPLAYS = replays_of(ConsumerGroup)


def leave(table: GroupTable, group_id: str, member_id: str, member_epoch: int, instance_id: str | None) -> Outcome:
    """Removes the member. A static member with epoch -2 keeps its partitions until its session ends."""
    group = table.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    response = {"member_id": member_id, "member_epoch": member_epoch}
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = check_static(group, instance_id, member_id)
        if member_epoch == STATIC_LEAVING_EPOCH:
            return Outcome(response, [_left_for_a_while(member).assignment_record(group_id)])
    outcome = remove(table, group, [member])
    outcome.response = response
    return outcome


def check_static(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """Returns the static member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if it has another member id."""
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
    """The member without pending revocations, which its leave completes.

    The partitions that it keeps get epoch 0, so that its successor is taken to hold them from the start.
    """
    return replace(
        member,
        member_epoch=STATIC_LEAVING_EPOCH,
        assigned={topic: dict.fromkeys(epochs, 0) for topic, epochs in member.assigned.items()},
        pending_revocation=NOTHING,
    )


def remove(table: GroupTable, group: ConsumerGroup, members: Sequence[ConsumerMember]) -> Outcome:
    """Removes members from the group, which may downgrade it to a classic group (KIP-848)."""
    if not members:
        return Outcome()
    change = GroupChange(group, table.image().topics, table.clock)
    for member in members:
        change.remove_member(member.member_id)
    is_due = is_downgrade_due(table, change.group)
    if is_due and large_downgrade.is_large(change.group) and not large_downgrade.is_put_off(table, group.group_id):
        outcome = Outcome(records=change.records, then=functools.partial(_begin_downgrade, table, group))
    elif is_due and not large_downgrade.is_large(change.group):
        outcome = downgrade(table, group, change.group, reason="the last member of the consumer protocol has left")
    else:
        change.members_have_left()
        outcome = Outcome(records=change.records)
    after = outcome.then

    def then() -> None:
        for member in members:
            cancel_timers(table.timers, group.group_id, member.member_id)
        if group.is_empty:
            group.seen_topics = None
        if after is not None:
            after()

    outcome.then = then
    return outcome


def _begin_downgrade(table: GroupTable, group: ConsumerGroup) -> None:
    group.is_epoch_due = True
    large_downgrade.begin(table, group)


# Timers.


def loaded(table: GroupTable) -> Work[None]:
    """Gives every member a full session and a full rebalance timeout: it had no coordinator while the shard loaded."""
    for group in list(table.groups.values()):
        if isinstance(group, ConsumerGroup):
            for number, member in enumerate(group.members.values()):
                watch_member(table, group.group_id, member)
                if not number % SESSIONS_AT_ONCE:
                    yield
            if large_downgrade.is_large(group) and is_downgrade_due(table, group):
                # The previous coordinator did not complete the downgrade. The log does not say whether members left.
                group.is_epoch_due = True
                large_downgrade.begin(table, group)
        yield


def config_of(table: GroupTable, group_id: str) -> GroupConfig:
    return group_config(table.image().group_config(group_id), table.config)


def watch_member(table: GroupTable, group_id: str, member: ConsumerMember) -> None:
    """Restarts the session of a member, and its rebalance timeout if it has partitions to revoke."""
    watch_session(table, group_id, member, config_of(table, group_id).consumer_session_timeout_ms)
    watch_revocation(table, group_id, member)


def watch_session(table: GroupTable, group_id: str, member: ConsumerMember, session_timeout_ms: int) -> None:
    """Restarts the session of a member. A classic member has the timeout that it named in its JoinGroup."""
    if member.classic is not None:
        session_timeout_ms = member.classic.session_timeout_ms
    key = timer_key(SESSION, group_id, member.member_id)
    operation = functools.partial(
        fence, group_id=group_id, member_id=member.member_id, why="its session has expired", timer=key
    )
    table.timers.schedule(key, session_timeout_ms, operation)


def watch_revocation(table: GroupTable, group_id: str, member: ConsumerMember) -> None:
    """Starts or cancels the rebalance timeout. Classic members have other timers, for JoinGroup and SyncGroup."""
    key = timer_key(REBALANCE, group_id, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
        table.timers.schedule(
            key,
            max(0, member.rebalance_timeout_ms),
            functools.partial(
                _fence_at_epoch, group_id=group_id, member_id=member.member_id, member_epoch=member.member_epoch
            ),
        )
    else:
        table.timers.cancel(key)


def watch_upgraded_sessions(table: GroupTable, *, group_id: str, members: Sequence[ClassicMember]) -> Outcome:
    """Replaces the session timers of an upgraded classic group by those of the consumer group, some at a time.

    Until its turn comes a member has the timer of the classic group, which does nothing when it expires.
    """
    group = table.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        # The group was downgraded since: its members have their classic timers, under the same keys as before.
        return Outcome()
    timeout_ms = config_of(table, group_id).consumer_session_timeout_ms
    for member in members[:SESSIONS_AT_ONCE]:
        table.timers.cancel(member.session_key)
        if member.member_id in group.members:
            watch_session(table, group_id, group.members[member.member_id], timeout_ms)
    if left := members[SESSIONS_AT_ONCE:]:
        go_on = functools.partial(watch_upgraded_sessions, group_id=group_id, members=left)
        table.timers.schedule(("upgraded sessions", group_id), 0, go_on)
    return Outcome()


def fence(table: GroupTable, *, group_id: str, member_id: str, why: str, timer: Hashable) -> Outcome:
    """Removes a member whose timer has expired, if the group still has it.

    ``timer`` is the key of that timer. If it runs again, this is a retry because the records could not be written, and
    the member has sent a request since: it stays.
    """
    group = table.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or member_id not in group.members or timer in table.timers:
        return Outcome()
    logger.info("group %s: member %s is fenced: %s", group_id, member_id, why)
    return remove(table, group, [group.members[member_id]])


def _fence_at_epoch(table: GroupTable, *, group_id: str, member_id: str, member_epoch: int) -> Outcome:
    group = table.groups.get(group_id)
    member: Any = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
    if member is None or member.member_epoch != member_epoch or member.state is not MemberState.UNREVOKED_PARTITIONS:
        return Outcome()
    key, why = timer_key(REBALANCE, group_id, member_id), f"it has not left epoch {member_epoch} in time"
    return fence(table, group_id=group_id, member_id=member_id, why=why, timer=key)
