"""How a classic group gets from one generation to the next: how long it waits for members, and which it removes.

The decisions are those of Kafka's GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, expirePendingSync).
They write no records and change the group at once, with one exception: the departure of the last member is written, and
the members are removed when that record is replayed.
"""

import functools
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_records import empty_record, is_in_use
from skep.coordination.groups.classic.classic_state import (
    CAN_REBALANCE,
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
)
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import Outcome, Waiter

logger = logging.getLogger(__name__)

_STATIC_MEMBERS_WAIT_MS = 1000
"""The shortest wait for static members to rejoin: their rebalance timeout may be 0."""

Replies = list[tuple[Waiter, Any]]


def join_key(group_id: str) -> Hashable:
    """The key of the timer that ends the wait for JoinGroup."""
    return ("classic join", group_id)


def sync_key(group_id: str) -> Hashable:
    """The key of the timer that ends the wait for SyncGroup."""
    return ("classic sync", group_id)


def classic_group(table: GroupTable, group_id: str) -> ClassicGroup | None:
    """Returns the group if it exists and is a classic group."""
    group = table.groups.get(group_id)
    return group if isinstance(group, ClassicGroup) else None


# Starting and ending the wait for members.


def rebalance(table: GroupTable, group: ClassicGroup, reason: str) -> Outcome:
    """Starts a rebalance after a member has joined, or completes the current one if all members have joined."""
    if group.state in CAN_REBALANCE:
        return prepare_rebalance(table, group, reason)
    return complete_if_all_joined(table, group)


def prepare_rebalance(table: GroupTable, group: ClassicGroup, reason: str) -> Outcome:
    """Starts a rebalance. SyncGroup requests that wait for an assignment get REBALANCE_IN_PROGRESS."""
    logger.info("group %r, generation %d: rebalance: %s", group.group_id, group.generation_id, reason)
    replies: Replies = []
    if group.state is COMPLETING_REBALANCE:
        replies = _end_syncing(group)
    group.pending_sync.clear()
    table.timers.cancel(sync_key(group.group_id))
    group.become(PREPARING_REBALANCE)
    if group.is_initial_rebalance:
        delay_ms = table.config.group_initial_rebalance_delay_ms
        _wait_for_more(table, group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        return Outcome(replies=replies)
    if group.have_all_joined:
        outcome = complete_join(table, group)
        outcome.replies = [*replies, *outcome.replies]
        return outcome
    _wait_for_members(table, group)
    return Outcome(replies=replies)


def _end_syncing(group: ClassicGroup) -> Replies:
    replies: Replies = []
    for member in group.members.values():
        member.assignment = b""
        if member.sync_waiter is not None:
            replies.append(
                (
                    member.sync_waiter,
                    KafkaError(ErrorCode.rebalance_in_progress, f"group {group.group_id!r} rebalances"),
                )
            )
            member.sync_waiter = None
            group.renew_session(member)
    return replies


def _wait_for_members(table: GroupTable, group: ClassicGroup, at_least_ms: int = 0) -> None:
    delay_ms = max(group.rebalance_timeout_ms, at_least_ms)
    table.timers.schedule(join_key(group.group_id), delay_ms, functools.partial(_join_timeout, group.group_id))


def _wait_for_more(table: GroupTable, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
    operation = functools.partial(_initial_delay_over, group.group_id, delay_ms, remaining_ms)
    table.timers.schedule(join_key(group.group_id), delay_ms, operation)


def _join_timeout(group_id: str, table: GroupTable) -> Outcome:
    group = classic_group(table, group_id)
    if group is None or group.state is not PREPARING_REBALANCE or join_key(group_id) in table.timers:
        # A timer that is scheduled again belongs to a later rebalance: this is a retry of an end that was not written.
        return Outcome()
    return complete_join(table, group)


def _initial_delay_over(group_id: str, delay_ms: int, remaining_ms: int, table: GroupTable) -> Outcome:
    """Ends the initial delay. If members joined meanwhile it is extended, up to the rebalance timeout in all."""
    group = classic_group(table, group_id)
    if group is None or not group.is_initial_rebalance:
        return Outcome()
    if group.has_grown and remaining_ms:
        group.has_grown = False
        next_delay_ms = min(table.config.group_initial_rebalance_delay_ms, remaining_ms)
        _wait_for_more(table, group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        return Outcome()
    return complete_join(table, group)


def complete_if_all_joined(table: GroupTable, group: ClassicGroup) -> Outcome:
    """Completes the rebalance if all members have joined. The initial delay still has to pass: more may join."""
    if group.state is PREPARING_REBALANCE and not group.is_initial_rebalance and group.have_all_joined:
        return complete_join(table, group)
    return Outcome()


def complete_join(table: GroupTable, group: ClassicGroup) -> Outcome:
    """Ends the wait and starts the next generation.

    Members that have not joined are removed, except static ones, which have until their session expires.
    """
    missing = [member for member in group.members.values() if member.join_waiter is None and not member.is_static]
    if len(missing) == len(group.members):
        return _remove_all(table, group, [])
    table.timers.cancel(join_key(group.group_id))
    for member in missing:
        table.timers.cancel(member.session_key)
        group.remove(member)
    if missing:
        logger.info("group %r: removed %d members that did not rejoin", group.group_id, len(missing))
    if not _elect_leader(group):
        # Only static members are left and none has joined: they have until their sessions expire.
        _wait_for_members(table, group, at_least_ms=_STATIC_MEMBERS_WAIT_MS)
        return Outcome()
    group.begin_generation()
    replies = []
    for_all = _shared_body(group)
    for member in group.members.values():
        if member.join_waiter is not None:
            replies.append((group.take_join_waiter(member), joined_body(group, member, for_all)))
        member.is_new = False
        group.renew_session(member)
    operation = functools.partial(_sync_timeout, group.group_id, group.generation_id)
    table.timers.schedule(sync_key(group.group_id), group.rebalance_timeout_ms, operation)
    logger.info("group %r: generation %d has %d members", group.group_id, group.generation_id, len(group.members))
    return Outcome(replies=replies)


def _elect_leader(group: ClassicGroup) -> bool:
    """Keeps the leader if it has joined, otherwise makes a member that has joined the leader."""
    assert group.leader_id is not None
    if group.members[group.leader_id].join_waiter is None:
        joined = next((member for member in group.members.values() if member.join_waiter is not None), None)
        if joined is None:
            return False
        group.leader_id = joined.member_id
    return True


def joined_body(group: ClassicGroup, member: ClassicMember, for_all: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns JoinGroup's body in the current generation. Only the leader gets the list of members.

    ``for_all`` is the part that all members share, if the caller has made it.
    """
    body = {**(for_all or _shared_body(group)), "member_id": member.member_id}
    if group.leader_id == member.member_id:
        body["members"] = members_for_leader(group.members.values(), group.protocol_name)
    return body


def _shared_body(group: ClassicGroup) -> dict[str, Any]:
    """Returns the part of JoinGroup's body that is the same for all members."""
    return {
        "generation_id": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader_id,
        "members": [],
    }


def members_for_leader(members: Iterable[ClassicMember], protocol_name: str | None) -> list[dict[str, Any]]:
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "metadata": member.metadata(protocol_name),
        }
        for member in members
    ]


def _sync_timeout(group_id: str, generation_id: int, table: GroupTable) -> Outcome:
    """Removes members that joined and did not send SyncGroup in time."""
    group = classic_group(table, group_id)
    if group is None or group.generation_id != generation_id or group.state not in (COMPLETING_REBALANCE, STABLE):
        return Outcome()
    if not group.pending_sync:
        return Outcome()
    late = [group.members[member_id] for member_id in group.pending_sync]
    return remove_members(table, group, late, f"{len(late)} members have not sent SyncGroup in time")


# Removing members.


def remove_members(
    table: GroupTable,
    group: ClassicGroup,
    removed: Sequence[ClassicMember],
    reason: str,
    abandoned: Sequence[str] = (),
) -> Outcome:
    """Removes members, whose waiting requests get UNKNOWN_MEMBER_ID; the others rebalance.

    ``abandoned`` are ids of ``pending`` that will not be used.
    """
    replies = [reply for member in removed for reply in refusals(member, ErrorCode.unknown_member_id)]
    if len(removed) == len(group.members):
        return _remove_all(table, group, replies, abandoned)
    group.pending.difference_update(abandoned)
    for member in removed:
        table.timers.cancel(member.session_key)
        group.remove(member)
    outcome = rebalance(table, group, reason)
    outcome.replies = [*replies, *outcome.replies]
    return outcome


def refusals(member: ClassicMember, code: ErrorCode) -> Replies:
    """Returns ``code`` as the reply to the requests of the member that wait."""
    waiters = (member.join_waiter, member.sync_waiter)
    return [(waiter, KafkaError(code)) for waiter in waiters if waiter is not None]


def _remove_all(table: GroupTable, group: ClassicGroup, replies: Replies, abandoned: Sequence[str] = ()) -> Outcome:
    """Removes all members, and the group too unless the log has it."""
    removed = list(group.members.values())

    def end_waiting() -> None:
        group.pending.difference_update(abandoned)
        table.timers.cancel(join_key(group.group_id))
        table.timers.cancel(sync_key(group.group_id))
        for member in removed:
            table.timers.cancel(member.session_key)

    logger.info("group %r: generation %d has no members left", group.group_id, group.generation_id)
    if is_in_use(table, group):
        return Outcome(records=[empty_record(group, table.clock.now_ms())], replies=replies, then=end_waiting)
    end_waiting()
    group.replace_all([])
    group.leader_id, group.protocol_name = None, None
    group.generation_id += 1
    group.become(EMPTY)
    drop_if_unused(table, group)
    return Outcome(replies=replies)


def drop_if_unused(table: GroupTable, group: ClassicGroup) -> None:
    """Deletes a group without members and member ids handed out, unless it is in the log."""
    if group.state is EMPTY and not group.is_logged and not group.pending:
        group.become(DEAD)
        del table.groups[group.group_id]
