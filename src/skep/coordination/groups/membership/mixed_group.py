"""Members of the classic protocol in a consumer group (KIP-848): JoinGroup, SyncGroup, Heartbeat and LeaveGroup there.

To such a member the epoch is its generation, and the broker a leader that has always assigned already. Joining is what
a heartbeat is to others: it says what it subscribes to and owns, and takes a step towards its target. Nobody waits for
anybody, so JoinGroup and SyncGroup are answered at once. That it should take another step it learns from its heartbeat:
REBALANCE_IN_PROGRESS. Then it has its rebalance timeout to join, and again to ask for its assignment.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_join import MAX_NAME_BYTES
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.classic_sync import SyncRequest
from skep.coordination.groups.classic.consumer_protocol import Subscription, read_subscription
from skep.coordination.groups.classic.join_request import JoinRequest, new_member_id
from skep.coordination.groups.classic_subscriptions import CONSUMER
from skep.coordination.groups.consumer.assignment_task import schedule_assigning
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, MemberState
from skep.coordination.groups.consumer.consumer_subscriptions import NOTHING_ASSIGNED, metadata_hash
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.consumer.member_timers import JOIN, SYNC, forget_timers, timer_key
from skep.coordination.groups.consumer.topic_match_task import schedule_matching
from skep.coordination.groups.membership import consumer_departure as consumer_leaving
from skep.coordination.groups.migration import downgrade as migration
from skep.coordination.groups.migration import large_downgrade as downgrade
from skep.coordination.groups.migration import upgrade
from skep.coordination.groups.topic_patterns.topic_matches import Topics
from skep.coordination.shard import Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

REQUIRES_MEMBER_ID = 4


def join(shard: "GroupShard", group: ConsumerGroup, request: JoinRequest) -> Outcome:
    """The response is JoinGroup's body."""
    subscription = _check_join(shard, group, request)
    is_new = not request.member_id
    member_id = request.member_id or new_member_id(request)
    if is_new and request.group_instance_id is None and request.version >= REQUIRES_MEMBER_ID:
        return Outcome({"error_code": ErrorCode.member_id_required, "member_id": member_id})
    change = GroupChange(group, shard.image().topics, shard.clock)
    member, replaced = _member(change, request, member_id)
    updated = _updated(member, request, subscription)
    change.check_room(updated, shard.settings(), shard.used_bytes())
    has_subscription_changed = change.update_member(member, updated, shard.settings().group_consumer_assignors[0])
    moved, _ = change.reconcile(
        member_id,
        owned=upgrade.by_id(subscription.owned, change.topics),
        has_subscription_changed=has_subscription_changed,
    )
    is_due = replaced is not None and not replaced.is_classic and migration.is_downgrade_due(shard, change.group)
    is_downgrade = is_due and not downgrade.is_large(change.group)
    outcome = _downgrade(shard, group, change, moved) if is_downgrade else Outcome(records=change.records)
    after = outcome.then

    def then() -> None:
        if replaced is not None:
            forget_timers(shard.timers, group.group_id, replaced.member_id)
        if not is_downgrade:
            change.remember(group)
            schedule_matching(shard, group)
            schedule_assigning(shard, group)
            _watch_after_join(shard, group.group_id, moved)
        if is_due and not is_downgrade and not downgrade.is_put_off(shard, group.group_id):
            downgrade.begin(shard, group)
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


def _downgrade(shard: "GroupShard", group: ConsumerGroup, change: GroupChange, moved: ConsumerMember) -> Outcome:
    """A static member of the new protocol was the last of its kind, and has come back speaking the classic one."""
    change.write(moved.assignment_record(group.group_id))
    left = change.group
    # As long as it asks for the same as before the group need not notice.
    reason = "a static member came back with the classic protocol" if left.group_epoch != group.group_epoch else None
    return migration.downgrade(shard, group, left, reason=reason)


def _check_join(shard: "GroupShard", group: ConsumerGroup, request: JoinRequest) -> Subscription:
    settings = shard.settings()
    if settings.group_consumer_migration_policy == "disabled":
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol, f"{group.group_id!r} is a consumer group, and migration is disabled"
        )
    if len(request.member_id) > MAX_NAME_BYTES // 4 and len(request.member_id.encode()) > MAX_NAME_BYTES:
        raise KafkaError(ErrorCode.unknown_member_id, "no member id is that long")
    is_known = request.member_id in group.members or group.static_member(request.group_instance_id) is not None
    if not is_known and len(group.members) >= settings.group_consumer_max_size:
        raise KafkaError(ErrorCode.group_max_size_reached, "the group is full")
    is_understood = any(group.classic_protocol_counts[name] == group.classic_count for name, _ in request.protocols)
    if request.protocol_type != CONSUMER or not is_understood:
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"{request.protocol_type!r} with {[name for name, _ in request.protocols]} does not fit the group",
        )
    try:
        return read_subscription(request.protocols[0][1])
    except ValueError as error:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"the subscription cannot be read: {error}") from None


def _member(change: GroupChange, request: JoinRequest, member_id: str) -> tuple[ConsumerMember, ConsumerMember | None]:
    """The member as it is before it joins, and the static one whose place it takes."""
    group = change.group
    if request.group_instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id), None
    if request.member_id:
        return consumer_leaving.check_static(group, request.group_instance_id, member_id), None
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
        classic=upgrade.classic_metadata(request.session_timeout_ms, request.protocols),
    )
    return member if updated == member else updated


def sync(shard: "GroupShard", group: ConsumerGroup, request: SyncRequest) -> Outcome:
    """The response is SyncGroup's body."""
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    protocol_name = member.classic.supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, protocol_name):
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"the group has {CONSUMER!r}, {protocol_name!r}")
    if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _watch_join(shard, group.group_id, member)
        raise KafkaError(ErrorCode.rebalance_in_progress, "there is a new assignment; join again")
    shard.timers.cancel(timer_key(SYNC, group.group_id, member.member_id))
    consumer_leaving.watch_session(shard, group.group_id, member, 0)
    return Outcome(
        {
            "protocol_type": CONSUMER,
            "protocol_name": protocol_name,
            "assignment": migration.assignment_bytes(member, shard.image()),
        }
    )


def heartbeat(
    shard: "GroupShard", group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> Outcome:
    member = _classic_member(group, member_id, group_instance_id, generation_id)
    consumer_leaving.watch_session(shard, group.group_id, member, 0)
    if not _should_join_again(group, member, shard.image().topics):
        return Outcome({})
    _watch_join(shard, group.group_id, member)
    return Outcome({"error_code": ErrorCode.rebalance_in_progress})


def _should_join_again(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> bool:
    """There is a new assignment or one is due, or it has something to give up, or what it waits for is free by now."""
    if member.member_epoch < group.group_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if group.seen_topics is not topics and not group.regex_counts:
        # With expressions there are members of the new protocol, who notice other topics themselves.
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


def leave(shard: "GroupShard", group: ConsumerGroup, leaving: Sequence[Leaving]) -> Outcome:
    """The response is a list with each entry and its code; an administrator may remove members of either protocol."""
    going: dict[str, ConsumerMember] = {}
    answers: list[Mapping[str, Any]] = []
    for entry in leaving:
        code = ErrorCode.none
        try:
            member = _going(group, entry)
            going[member.member_id] = member
        except KafkaError as error:
            code = error.code
        answers.append({"member_id": entry.member_id, "group_instance_id": entry.group_instance_id, "error_code": code})
    outcome = consumer_leaving.remove(shard, group, list(going.values()))
    outcome.response = answers
    return outcome


def _going(group: ConsumerGroup, entry: Leaving) -> ConsumerMember:
    if entry.group_instance_id is None:
        return group.member(entry.member_id)
    member = group.static_member(entry.group_instance_id)
    if member is not None and not entry.member_id:
        return member
    return consumer_leaving.check_static(group, entry.group_instance_id, entry.member_id)


def _classic_member(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> ConsumerMember:
    if group_instance_id is None:
        member = group.member(member_id)
    else:
        member = consumer_leaving.check_static(group, group_instance_id, member_id)
    if not member.is_classic:
        raise KafkaError(ErrorCode.unknown_member_id, f"{member_id!r} does not use the classic protocol")
    if generation_id != member.member_epoch:
        raise KafkaError(ErrorCode.illegal_generation, f"generation {generation_id}, it is {member.member_epoch} now")
    return member


# Timers: how long a member may take to join when it is told to, and then to ask for its assignment.


def _watch_join(shard: "GroupShard", group_id: str, member: ConsumerMember) -> None:
    if timer_key(JOIN, group_id, member.member_id) not in shard.timers:
        _watch(shard, JOIN, group_id, member, "it has not joined again in time")


def _watch_after_join(shard: "GroupShard", group_id: str, member: ConsumerMember) -> None:
    shard.timers.cancel(timer_key(JOIN, group_id, member.member_id))
    consumer_leaving.watch_session(shard, group_id, member, 0)
    _watch(shard, SYNC, group_id, member, "it has not asked for its assignment in time")


def _watch(shard: "GroupShard", kind: str, group_id: str, member: ConsumerMember, why: str) -> None:
    key = timer_key(kind, group_id, member.member_id)
    operation = functools.partial(
        consumer_leaving.fence, group_id=group_id, member_id=member.member_id, why=why, timer=key
    )
    shard.timers.schedule(key, max(0, member.rebalance_timeout_ms), operation)
