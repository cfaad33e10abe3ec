"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of classic members in a consumer group (KIP-848).

For a classic member the epoch is its generation, and the broker is a leader whose assignment is always ready. JoinGroup
does what a heartbeat does for members of the consumer protocol: it has the subscription and the owned partitions, and
the member takes a step towards its target. No member waits for another, so JoinGroup and SyncGroup get their responses
at once. When the member has to take another step, its Heartbeat returns REBALANCE_IN_PROGRESS. Then it has its
rebalance timeout to send JoinGroup, and again to send SyncGroup.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_join import MAX_NAME_BYTES, REQUIRES_MEMBER_ID
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.classic_sync import SyncRequest
from skep.coordination.groups.classic.consumer_protocol import CONSUMER, Subscription, read_subscription
from skep.coordination.groups.classic.join_request import JoinRequest, new_member_id
from skep.coordination.groups.consumer.assignment_task import schedule_assigning
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, MemberState
from skep.coordination.groups.consumer.consumer_subscriptions import NOTHING_ASSIGNED, metadata_hash
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.consumer.member_timers import JOIN, SYNC, cancel_timers, timer_key
from skep.coordination.groups.consumer.topic_match_task import schedule_matching
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.membership import consumer_departure
from skep.coordination.groups.migration import large_downgrade
from skep.coordination.groups.migration.downgrade import assignment_bytes, downgrade, is_downgrade_due
from skep.coordination.groups.migration.upgrade import by_id, classic_metadata
from skep.coordination.groups.topic_patterns.topic_matches import Topics
from skep.coordination.shard import Outcome


def join(table: GroupTable, group: ConsumerGroup, request: JoinRequest) -> Outcome:
    """The response is JoinGroup's body."""
    subscription = _check_join(table, group, request)
    is_new = not request.member_id
    member_id = request.member_id or new_member_id(request)
    if is_new and request.group_instance_id is None and request.version >= REQUIRES_MEMBER_ID:
        return Outcome({"error_code": ErrorCode.member_id_required, "member_id": member_id})
    change = GroupChange(group, table.image().topics, table.clock)
    member, replaced = _member(change, request, member_id)
    updated = _updated(member, request, subscription)
    change.check_room(updated, table.config, table.used_bytes())
    has_subscription_changed = change.update_member(member, updated, table.config.group_consumer_assignors[0])
    moved, _ = change.reconcile(
        member_id,
        owned=by_id(subscription.owned, change.topics),
        has_subscription_changed=has_subscription_changed,
    )
    is_due = replaced is not None and not replaced.is_classic and is_downgrade_due(table, change.group)
    is_downgrade = is_due and not large_downgrade.is_large(change.group)
    outcome = _downgrade(table, group, change, moved) if is_downgrade else Outcome(records=change.records)
    after = outcome.then

    def then() -> None:
        if replaced is not None:
            cancel_timers(table.timers, group.group_id, replaced.member_id)
        if not is_downgrade:
            change.remember(group)
            schedule_matching(table, group)
            schedule_assigning(table, group)
            _watch_after_join(table, group.group_id, moved)
        if is_due and not is_downgrade and not large_downgrade.is_put_off(table, group.group_id):
            large_downgrade.begin(table, group)
        if after is not None:
            after()

    outcome.then = then
    outcome.response = {
        "member_id": member_id,
        "generation_id": group.group_epoch if is_downgrade else moved.member_epoch,
        "protocol_type": CONSUMER,
        "protocol_name": request.protocols[0][0],
    }
    return outcome


def _downgrade(table: GroupTable, group: ConsumerGroup, change: GroupChange, moved: ConsumerMember) -> Outcome:
    """The last member of the consumer protocol was static, and came back as a classic member."""
    change.write(moved.assignment_record(group.group_id))
    left = change.group
    # Without a new epoch its subscription is the same as before, and the group need not rebalance.
    reason = "a static member came back with the classic protocol" if left.group_epoch != group.group_epoch else None
    return downgrade(table, group, left, reason=reason)


def _check_join(table: GroupTable, group: ConsumerGroup, request: JoinRequest) -> Subscription:
    settings = table.config
    if settings.group_consumer_migration_policy == "disabled":
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"{group.group_id!r} is a consumer group, and group.consumer.migration.policy is disabled",
        )
    if len(request.member_id) > MAX_NAME_BYTES // 4 and len(request.member_id.encode()) > MAX_NAME_BYTES:
        raise KafkaError(ErrorCode.unknown_member_id, f"the member id is longer than {MAX_NAME_BYTES} bytes")
    is_known = request.member_id in group.members or group.static_member(request.group_instance_id) is not None
    if not is_known and len(group.members) >= settings.group_consumer_max_size:
        raise KafkaError(
            ErrorCode.group_max_size_reached,
            f"group {group.group_id!r} has {len(group.members)} members, which is the limit (group.consumer.max.size)",
        )
    is_understood = any(group.classic_protocol_counts[name] == group.classic_count for name, _ in request.protocols)
    if request.protocol_type != CONSUMER or not is_understood:
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"not all members of group {group.group_id!r} support {request.protocol_type!r}"
            f" with one of {[name for name, _ in request.protocols]}",
        )
    try:
        return read_subscription(request.protocols[0][1])
    except ValueError as error:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"the subscription cannot be read: {error}") from None


def _member(change: GroupChange, request: JoinRequest, member_id: str) -> tuple[ConsumerMember, ConsumerMember | None]:
    """Returns the member as it is before it joins, and the static member that it replaces."""
    group = change.group
    if request.group_instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id), None
    if request.member_id:
        return consumer_departure.check_static(group, request.group_instance_id, member_id), None
    member = group.static_member(request.group_instance_id)
    if member is None:
        return ConsumerMember(member_id), None
    successor = replace(member, member_id=member_id, member_epoch=0, previous_member_epoch=0)
    change.replace_member(member, successor)
    return successor, member


def _updated(member: ConsumerMember, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
    updated = replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=subscription.topics,
        topic_regex="",
        classic=classic_metadata(request.session_timeout_ms, request.protocols),
    )
    return member if updated == member else updated


def sync(table: GroupTable, group: ConsumerGroup, request: SyncRequest) -> Outcome:
    """The response is SyncGroup's body."""
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    protocol_name = member.classic.supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, protocol_name):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol, f"group {group.group_id!r} uses {CONSUMER!r} with {protocol_name!r}"
        )
    if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _watch_join(table, group.group_id, member)
        raise KafkaError(ErrorCode.rebalance_in_progress, "there is a new assignment: join again")
    table.timers.cancel(timer_key(SYNC, group.group_id, member.member_id))
    consumer_departure.watch_session(table, group.group_id, member, 0)
    return Outcome(
        {
            "protocol_type": CONSUMER,
            "protocol_name": protocol_name,
            "assignment": assignment_bytes(member, table.image()),
        }
    )


def heartbeat(
    table: GroupTable, group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> Outcome:
    member = _classic_member(group, member_id, group_instance_id, generation_id)
    consumer_departure.watch_session(table, group.group_id, member, 0)
    if not _should_join_again(group, member, table.image().topics):
        return Outcome({})
    _watch_join(table, group.group_id, member)
    return Outcome({"error_code": ErrorCode.rebalance_in_progress})


def _should_join_again(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> bool:
    """Whether the member has to join: for a new assignment, to revoke partitions, or to get those that became free."""
    if member.member_epoch < group.group_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if group.seen_topics is not topics and not group.regex_counts:
        # With regular expressions there are members of the consumer protocol, whose heartbeats notice new topics.
        if metadata_hash(group.subscribed_topics(), topics) != group.metadata_hash:
            return True
        group.seen_topics = topics
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    return all(
        group.is_free_for(member.member_id, topic, number)
        for topic, numbers in group.targets.get(member.member_id, NOTHING_ASSIGNED).items()
        for number in numbers
    )


def leave(table: GroupTable, group: ConsumerGroup, leaving: Sequence[Leaving]) -> Outcome:
    """The response is a list with the error code of each entry. LeaveGroup may remove members of either protocol."""
    removed: dict[str, ConsumerMember] = {}
    responses: list[Mapping[str, Any]] = []
    for entry in leaving:
        code = ErrorCode.none
        try:
            member = _leaving_member(group, entry)
            removed[member.member_id] = member
        except KafkaError as error:
            code = error.code
        responses.append(
            {"member_id": entry.member_id, "group_instance_id": entry.group_instance_id, "error_code": code}
        )
    outcome = consumer_departure.remove(table, group, list(removed.values()))
    outcome.response = responses
    return outcome


def _leaving_member(group: ConsumerGroup, entry: Leaving) -> ConsumerMember:
    if entry.group_instance_id is None:
        return group.member(entry.member_id)
    member = group.static_member(entry.group_instance_id)
    if member is not None and not entry.member_id:
        return member
    return consumer_departure.check_static(group, entry.group_instance_id, entry.member_id)


def _classic_member(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> ConsumerMember:
    if group_instance_id is None:
        member = group.member(member_id)
    else:
        member = consumer_departure.check_static(group, group_instance_id, member_id)
    if not member.is_classic:
        raise KafkaError(ErrorCode.unknown_member_id, f"member {member_id!r} does not use the classic protocol")
    if generation_id != member.member_epoch:
        raise KafkaError(
            ErrorCode.illegal_generation, f"generation {generation_id} is not the current one, {member.member_epoch}"
        )
    return member


# Timers: how long a member may take to send JoinGroup again, and then SyncGroup.


def _watch_join(table: GroupTable, group_id: str, member: ConsumerMember) -> None:
    if timer_key(JOIN, group_id, member.member_id) not in table.timers:
        _watch(table, JOIN, group_id, member, "it has not joined again in time")


def _watch_after_join(table: GroupTable, group_id: str, member: ConsumerMember) -> None:
    table.timers.cancel(timer_key(JOIN, group_id, member.member_id))
    consumer_departure.watch_session(table, group_id, member, 0)
    _watch(table, SYNC, group_id, member, "it has not sent SyncGroup in time")


def _watch(table: GroupTable, kind: str, group_id: str, member: ConsumerMember, why: str) -> None:
    key = timer_key(kind, group_id, member.member_id)
    operation = functools.partial(
        consumer_departure.fence, group_id=group_id, member_id=member.member_id, why=why, timer=key
    )
    table.timers.schedule(key, max(0, member.rebalance_timeout_ms), operation)
