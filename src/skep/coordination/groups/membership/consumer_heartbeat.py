"""The operation of ConsumerGroupHeartbeat (KIP-848): a member joins, stays, and gets its assignment.

A heartbeat first adds the member, or updates its subscription. If that or the topics of the cluster call for it, the
group gets a new epoch and a new target assignment. Then the member takes a step towards its part of the target. Most
heartbeats contain nothing new and only reset the session.

A request has only what has changed since the last heartbeat, and a response only what has changed since the last
response. When either may have been lost, the member sends everything and gets everything.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work, run_at_once
from skep.coordination.group_ids import check_ids
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.classic.classic_rebalance import classic_group
from skep.coordination.groups.consumer.assignment_task import schedule_assigning
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    Held,
    shown,
)
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.consumer.member_timers import cancel_timers
from skep.coordination.groups.consumer.topic_match_task import schedule_matching
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.membership import consumer_departure
from skep.coordination.groups.migration.upgrade import Upgrade, upgrade
from skep.coordination.groups.topic_patterns.topic_matches import TopicFilter
from skep.coordination.shard import Outcome
from skep.metadata.model import id_text, random_id

FIRST_VERSION_WITH_CLIENT_IDS = 1
"""From this version on the member generates its own id, so a join that is retried does not add a second member."""

INTERVAL_WHILE_UNFINISHED_MS = 1_000
"""The interval for a member whose assignment is still being computed."""


class HeartbeatRequest(NamedTuple):
    """What a member sends. None (-1 for the timeout) means unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    topic_filter: TopicFilter | None = None
    """The topics that an expression may match. None: all."""
    server_assignor: str | None = None
    owned: Partitions | None = None
    version: int = FIRST_VERSION_WITH_CLIENT_IDS

    @property
    def is_full(self) -> bool:
        return (
            self.owned is not None
            and self.rebalance_timeout_ms != -1
            and (self.topic_names is not None or self.topic_regex is not None)
        )


def upgrade_and_join(table: GroupTable, request: HeartbeatRequest) -> Work[Callable[[GroupTable], Outcome]]:
    """Prepares the ``heartbeat`` that upgrades a large classic group, and returns it as an operation."""
    _check(request, table.config.group_consumer_assignors, table.config.max_group_id_bytes)
    group = classic_group(table, request.group_id)
    made = None if group is None else (yield from upgrade(table, group))
    return lambda table: heartbeat(table, request, made)


def heartbeat(table: GroupTable, request: HeartbeatRequest, made: Upgrade | None = None) -> Outcome:
    """The response is the body of ConsumerGroupHeartbeat. ``made`` is the group's upgrade if it was prepared."""
    settings = table.config
    _check(request, settings.group_consumer_assignors, settings.max_group_id_bytes)
    if request.member_epoch < 0:
        return consumer_departure.leave(
            table, request.group_id, request.member_id, request.member_epoch, request.instance_id
        )
    found, made = _start(table, request, made)
    _check_size(found, request, settings.group_consumer_max_size)
    change = GroupChange(found, table.image().topics, table.clock, request.topic_filter)
    member, replaced = _member(change, request)
    updated = _updated(member, request)
    if updated is not member:
        change.check_room(updated, settings, table.used_bytes())
    has_subscription_changed = change.update_member(member, updated, settings.group_consumer_assignors[0])
    moved, has_moved = change.reconcile(
        member.member_id, owned=request.owned, has_subscription_changed=has_subscription_changed
    )
    config = consumer_departure.config_of(table, request.group_id)

    def then() -> None:
        if made is not None:
            made.cancel_classic_timers(table)
            members = list(made.classic.members.values())
            consumer_departure.watch_upgraded_sessions(table, group_id=request.group_id, members=members)
        if replaced is not None:
            cancel_timers(table.timers, request.group_id, replaced)
        consumer_departure.watch_session(table, request.group_id, moved, config.consumer_session_timeout_ms)
        if has_moved:
            consumer_departure.watch_revocation(table, request.group_id, moved)
        group = table.groups[request.group_id]
        assert isinstance(group, ConsumerGroup)
        change.remember(group)
        schedule_matching(table, group)
        schedule_assigning(table, group)

    has_assignment = request.member_epoch == JOINING_EPOCH or request.is_full or moved.assigned != member.assigned
    interval_ms = config.consumer_heartbeat_interval_ms
    if change.is_unfinished:
        interval_ms = min(interval_ms, INTERVAL_WHILE_UNFINISHED_MS)
    response = {
        "member_id": moved.member_id,
        "member_epoch": moved.member_epoch,
        "heartbeat_interval": datetime.timedelta(milliseconds=interval_ms),
        "assignment": {"topic_partitions": shown(moved.assigned)} if has_assignment else None,
    }
    if made is None:
        return Outcome(response, change.records, then=then)
    return Outcome(response, change.records, made.refusals(), then, prepared=made.prepared)


def _start(table: GroupTable, request: HeartbeatRequest, made: Upgrade | None) -> tuple[ConsumerGroup, Upgrade | None]:
    """Returns the group, a new one if there is none, and the upgrade if it was a classic group."""
    if made is not None:
        made.check_current(table)
        return made.group, made
    group = table.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return group, None
    if request.member_epoch != JOINING_EPOCH and group is not None:
        # The member was fenced, and then the group was downgraded. On this code the client joins again; Kafka returns
        # GROUP_ID_NOT_FOUND, which is fatal to clients.
        raise KafkaError(ErrorCode.unknown_member_id, f"Group {request.group_id} is now a {group.type_name} group.")
    if request.member_epoch != JOINING_EPOCH:
        raise KafkaError(ErrorCode.group_id_not_found, f"Consumer group {request.group_id} not found.")
    if group is None:
        if not table.offsets.has_offsets(request.group_id):
            table.check_room()
        return ConsumerGroup(request.group_id), None
    made = run_at_once(upgrade(table, group))
    return made.group, made


def _member(change: GroupChange, request: HeartbeatRequest) -> tuple[ConsumerMember, str | None]:
    """Returns the member as it is before this heartbeat, and the id of the static member that it replaces."""
    group, member_id = change.group, request.member_id or id_text(random_id())
    is_joining = request.member_epoch == JOINING_EPOCH
    if request.instance_id is None:
        member = group.members.get(member_id) if is_joining else group.member(member_id)
    elif is_joining:
        member = group.static_member(request.instance_id)
        if member is not None and member.member_id != member_id:
            return _take_over(change, member, member_id), member.member_id
    else:
        member = consumer_departure.check_static(group, request.instance_id, member_id)
    if member is None:
        return ConsumerMember(member_id), None
    _check_epoch(member, request)
    return member, None


def _take_over(change: GroupChange, member: ConsumerMember, successor_id: str) -> ConsumerMember:
    """Replaces a static member by its successor with a new id. It must have left, unless it is a classic member."""
    if not member.is_classic and member.member_epoch != STATIC_LEAVING_EPOCH:
        raise KafkaError(
            ErrorCode.unreleased_instance_id,
            f"Static member {successor_id} with instance id {member.instance_id} cannot join the group because the"
            f" instance id is owned by {member.member_id} member.",
        )
    successor = replace(member, member_id=successor_id, member_epoch=0, previous_member_epoch=0)
    change.replace_member(member, successor)
    return successor


def _updated(member: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """Returns the member with what the request changes; the same object if nothing changes."""
    fields: dict[str, Any] = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "topic_names": request.topic_names,
        "topic_regex": request.topic_regex,
        "server_assignor": request.server_assignor,
    }
    if request.member_epoch == JOINING_EPOCH:
        # The first heartbeat of this process: a field that is null is empty, not unchanged.
        fields["topic_names"] = request.topic_names or frozenset()
        fields["topic_regex"] = request.topic_regex or ""
    else:
        fields = {name: value for name, value in fields.items() if value is not None}
    if request.rebalance_timeout_ms != -1:
        fields["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    fields.update(client_id=request.client_id, client_host=request.client_host, classic=None)
    changed = {name: value for name, value in fields.items() if getattr(member, name) != value}
    return replace(member, **changed) if changed else member


# Refusals.


def _check(request: HeartbeatRequest, assignors: Sequence[str], longest: int) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR. ``longest`` is the limit of group ids, used for all ids."""
    epoch = request.member_epoch
    if not request.member_id and (
        request.version >= FIRST_VERSION_WITH_CLIENT_IDS or epoch > 0 or epoch == LEAVING_EPOCH
    ):
        raise _invalid("MemberId can't be empty.")
    check_ids(
        longest,
        GroupId=request.group_id,
        MemberId=request.member_id or None,
        InstanceId=request.instance_id,
        RackId=request.rack_id,
    )
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.topic_names is None and request.topic_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, detail)


def _check_size(group: ConsumerGroup, request: HeartbeatRequest, max_size: int) -> None:
    if group.static_member(request.instance_id) is not None or len(group.members) < max_size:
        return
    if request.member_id not in group.members:
        raise KafkaError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Raises FENCED_MEMBER_EPOCH unless the epoch is the member's, or its previous one.

    The response with the new epoch may have been lost. Then the member must own nothing beyond its assignment.
    """
    epoch = request.member_epoch
    if epoch in (JOINING_EPOCH, member.member_epoch):
        return
    if epoch == member.previous_member_epoch and _is_part_of(request.owned, member.assigned):
        return
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {'greater' if epoch > member.member_epoch else 'smaller'} member epoch"
        f" ({epoch}) than the one known by the group coordinator ({member.member_epoch})."
        " The member must abandon all its partitions and rejoin.",
    )


def _is_part_of(owned: Partitions | None, assigned: Held) -> bool:
    return owned is not None and all(assigned.get(topic, {}).keys() >= numbers for topic, numbers in owned.items())
