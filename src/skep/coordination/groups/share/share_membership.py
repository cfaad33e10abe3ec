"""The operation of ShareGroupHeartbeat (KIP-932): a member joins, stays, gets its assignment, and leaves.

A heartbeat adds the member, or updates its subscription. If that, the topics of the cluster or newly initialized
partitions call for it, the group gets a new epoch and a new target assignment, but not more often than the assignment
interval allows. Then the member gets its part of the target. Most heartbeats contain nothing new and only reset the
session. A member whose session ends is fenced: it is removed from the group, and its next heartbeat is refused.
"""

import datetime
import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from skep.base.config.share_group_config import EXCLUSIVE, SHARED, ShareGroupConfig, share_group_config
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.group_ids import check_ids
from skep.coordination.groups.consumer.assignment_task import schedule_assigning
from skep.coordination.groups.consumer.consumer_member import JOINING_EPOCH, LEAVING_EPOCH, shown
from skep.coordination.groups.consumer.member_timers import SESSION, cancel_timers, timer_key
from skep.coordination.groups.consumer.modern_replay import replays_of
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.share.share_change import ShareChange
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.groups.share.share_member import ShareMember
from skep.coordination.shard import Outcome

logger = logging.getLogger(__name__)

INTERVAL_WHILE_UNFINISHED_MS = 1_000
"""The interval for a member whose assignment is still to come, and for stand-bys, who take over with a heartbeat."""

MEMBERS_AT_ONCE = 100
"""Sessions started without a pause."""

REPLAYS = replays_of(ShareGroup)


class ShareHeartbeatRequest(NamedTuple):
    """What a member sends. None means unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    topic_names: frozenset[str] | None = None


class ShareHeartbeat(NamedTuple):
    """``body`` is that of the response. ``is_state_due``: more partitions have to be initialized, now."""

    body: Mapping[str, Any]
    is_state_due: bool = False


def share_group(table: GroupTable, group_id: str) -> ShareGroup:
    """Raises GROUP_ID_NOT_FOUND if the group does not exist, or is of another kind."""
    group = table.groups.get(group_id)
    if isinstance(group, ShareGroup):
        return group
    if group is not None or table.offsets.has_offsets(group_id):
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a share group.")
    raise KafkaError(ErrorCode.group_id_not_found, f"Share group {group_id} not found.")


def share_group_or_new(table: GroupTable, group_id: str) -> ShareGroup:
    """Returns the group, or a new one that its first record adds to the table."""
    if group_id in table.groups or table.offsets.has_offsets(group_id):
        return share_group(table, group_id)
    table.check_room()
    return ShareGroup(group_id)


def heartbeat(table: GroupTable, request: ShareHeartbeatRequest) -> Outcome:
    """The response is a ShareHeartbeat."""
    _check(request, table.config.max_group_id_bytes)
    group_id, member_id = request.group_id, request.member_id
    if request.member_epoch == LEAVING_EPOCH:
        outcome = _remove(table, share_group(table, group_id), member_id)
        outcome.response = ShareHeartbeat({"member_id": member_id, "member_epoch": LEAVING_EPOCH})
        return outcome
    is_joining = request.member_epoch == JOINING_EPOCH
    group = share_group_or_new(table, group_id) if is_joining else share_group(table, group_id)
    config = config_of(table, group_id)
    _check_size(group, member_id, table.share_config.max_size, config)
    member = group.members.get(member_id, ShareMember(member_id)) if is_joining else group.member(member_id)
    _check_epoch(member, request.member_epoch)
    change = ShareChange(group, table.image().topics, table.clock, config)
    updated = _updated(member, request)
    if updated is not member:
        change.check_room(updated, table.config, table.used_bytes())
    change.update_member(member, updated)
    moved = change.reconcile(member_id, is_subscription_new=updated.topic_names != member.topic_names)

    def then() -> None:
        _watch_session(table, group_id, member_id, config.session_timeout_ms)
        changed = share_group(table, group_id)
        change.remember(changed)
        schedule_assigning(table, changed)

    is_full = request.topic_names is not None
    interval_ms = config.heartbeat_interval_ms
    is_standby = config.members != SHARED and not moved.assigned
    if change.is_unfinished or change.lacks_state or is_standby:
        interval_ms = min(interval_ms, INTERVAL_WHILE_UNFINISHED_MS)
    has_assignment = is_joining or is_full or moved.assigned != member.assigned
    body = {
        "member_id": member_id,
        "member_epoch": moved.member_epoch,
        "heartbeat_interval": datetime.timedelta(milliseconds=interval_ms),
        "assignment": {"topic_partitions": shown(moved.assigned)} if has_assignment else None,
    }
    is_state_due = change.lacks_state and table.clock.monotonic() >= group.initializable_at
    return Outcome(ShareHeartbeat(body, is_state_due), change.records, then=then)


def _updated(member: ShareMember, request: ShareHeartbeatRequest) -> ShareMember:
    """Returns the member with what the request changes; the same object if nothing changes."""
    fields: dict[str, Any] = {
        "client_id": request.client_id,
        "client_host": request.client_host,
        "rack_id": request.rack_id,
        "topic_names": request.topic_names,
    }
    changed = {name: value for name, value in fields.items() if value is not None and getattr(member, name) != value}
    return replace(member, **changed) if changed else member


# Refusals.


def _check(request: ShareHeartbeatRequest, longest: int) -> None:
    """Raises INVALID_REQUEST. ``longest`` is the limit of group ids, used for all ids."""
    check_ids(longest, MemberId=request.member_id, GroupId=request.group_id, RackId=request.rack_id)
    if request.member_epoch == JOINING_EPOCH and not request.topic_names:
        raise KafkaError(ErrorCode.invalid_request, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVING_EPOCH:
        raise KafkaError(ErrorCode.invalid_request, "MemberEpoch is invalid.")


def _check_size(group: ShareGroup, member_id: str, max_size: int, config: ShareGroupConfig) -> None:
    if member_id in group.members:
        return
    if group.members and config.members == EXCLUSIVE:
        raise KafkaError(
            ErrorCode.group_max_size_reached,
            f"Share group {group.group_id} is exclusive (skep.share.members) and has a member. Another may join when"
            " that one has left, or its session has expired.",
        )
    if len(group.members) >= max_size:
        raise KafkaError(
            ErrorCode.group_max_size_reached, f"The share group has reached its maximum capacity of {max_size} members."
        )


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """Raises FENCED_MEMBER_EPOCH unless the epoch is the member's, or its previous one: the response with the new epoch
    may have been lost."""
    if epoch in (JOINING_EPOCH, member.member_epoch):
        return
    if epoch == member.previous_member_epoch and epoch < member.member_epoch:
        return
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The share group member has a {'greater' if epoch > member.member_epoch else 'smaller'} member epoch ({epoch})"
        f" than the one known by the group coordinator ({member.member_epoch}). The member must abandon all its"
        " partitions and rejoin.",
    )


# Departures.


def _remove(table: GroupTable, group: ShareGroup, member_id: str) -> Outcome:
    """Raises UNKNOWN_MEMBER_ID."""
    group.member(member_id)
    change = ShareChange(group, table.image().topics, table.clock, config_of(table, group.group_id))
    change.remove_member(member_id)
    change.members_have_left()
    return Outcome(records=change.records, then=lambda: cancel_timers(table.timers, group.group_id, member_id))


def config_of(table: GroupTable, group_id: str) -> ShareGroupConfig:
    return share_group_config(table.image().group_config(group_id), table.share_config)


def _watch_session(table: GroupTable, group_id: str, member_id: str, session_timeout_ms: int) -> None:
    key = timer_key(SESSION, group_id, member_id)
    operation = functools.partial(_fence, group_id=group_id, member_id=member_id)
    table.timers.schedule(key, session_timeout_ms, operation)


def _fence(table: GroupTable, *, group_id: str, member_id: str) -> Outcome:
    """Removes a member whose session has expired, if the group still has it.

    If its timer runs again, this is a retry because the records could not be written, and the member has sent a
    heartbeat since: it stays.
    """
    group = table.groups.get(group_id)
    is_member = isinstance(group, ShareGroup) and member_id in group.members
    if not is_member or timer_key(SESSION, group_id, member_id) in table.timers:
        return Outcome()
    assert isinstance(group, ShareGroup)
    logger.info("group %s: member %s is fenced: its session has expired", group_id, member_id)
    outcome = _remove(table, group, member_id)

    def then() -> None:
        cancel_timers(table.timers, group_id, member_id)
        table.share_member_fenced(group_id, member_id)

    outcome.then = then
    return outcome


def loaded(table: GroupTable) -> Work[None]:
    """Gives every member a full session: it had no coordinator while the shard loaded."""
    for group in list(table.groups.values()):
        if isinstance(group, ShareGroup):
            timeout_ms = config_of(table, group.group_id).session_timeout_ms
            for number, member_id in enumerate(list(group.members)):
                _watch_session(table, group.group_id, member_id, timeout_ms)
                if not number % MEMBERS_AT_ONCE:
                    yield
        yield
