"""A static member that was restarted (KIP-345): it joins without a member id and replaces its predecessor.

In a stable group this needs no rebalance as long as the member subscribes to the same topics: it gets the assignment of
its predecessor. The new id is in the log before the member gets it, so the predecessor stays fenced after a restart.
Kafka does not compare the topics, and leaves added ones without a consumer until the next rebalance.

The record has all members. The record of a large group is made in slices while the member waits. Members that return
meanwhile wait for the next record, which has all of them: when thousands are restarted, few records are written.
"""

from collections.abc import Sequence
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work, run_at_once
from skep.coordination.background import run_in_background
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import reason_shown
from skep.coordination.groups.classic.classic_member import ClassicMember, Returning
from skep.coordination.groups.classic.classic_rebalance import (
    joined_body,
    members_for_leader,
    rebalance,
    refusals,
)
from skep.coordination.groups.classic.classic_records import encoded_in_slices
from skep.coordination.groups.classic.classic_state import STABLE
from skep.coordination.groups.classic.consumer_protocol import CONSUMER, subscribed_topics
from skep.coordination.groups.classic.join_request import JoinRequest, member_of
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import LATER, Outcome, Prepared, Waiter

SKIPS_ASSIGNMENT = 9
SMALL_GROUP = 100
"""The record of up to this many members is written without a pause: a few milliseconds."""
MEMBERS_AT_ONCE = 100
"""Returning members in one record."""


def replace_static_member(
    table: GroupTable,
    group: ClassicGroup,
    member: ClassicMember,
    request: JoinRequest,
    member_id: str,
    waiter: Waiter,
) -> Outcome:
    successor = member_of(request, member_id)
    successor.assignment = member.assignment
    if group.state is STABLE and _has_same_subscription(group, member, successor):
        more_bytes = max(0, successor.metadata_bytes - member.metadata_bytes)
        returning = Returning(successor, more_bytes, request.version, waiter)
        if len(group.members) > SMALL_GROUP:
            return _wait_for_record(table, group, returning)
        outcome = run_at_once(_take_over(table, group, [returning]))
        outcome.response = LATER
        return outcome
    replies = refusals(member, ErrorCode.fenced_instance_id)
    group.replace({member.member_id: successor})
    group.update(successor, successor.protocols, waiter)
    table.timers.cancel(member.session_key)
    group.renew_session(successor)
    reason = f"{member_id!r} replaces {member.member_id!r}: {reason_shown(request.reason)}"
    outcome = rebalance(table, group, reason)
    outcome.replies = [*replies, *outcome.replies]
    outcome.response = LATER
    return outcome


def _has_same_subscription(group: ClassicGroup, member: ClassicMember, successor: ClassicMember) -> bool:
    """Whether the chosen protocol and the topics stay the same. The other metadata is for the assignor."""
    if [name for name, _ in member.protocols] != [name for name, _ in successor.protocols]:
        others = [successor if other is member else other for other in group.members.values()]
        if group.chosen_protocol(others) != group.protocol_name:
            return False
    if group.protocol_type != CONSUMER:
        return True
    before, after = (subscribed_topics(each.metadata(group.protocol_name)) for each in (member, successor))
    return before == after


# Large groups.


def _wait_for_record(table: GroupTable, group: ClassicGroup, returning: Returning) -> Outcome:
    instance_id = returning.successor.group_instance_id
    assert instance_id is not None
    earlier, is_first = group.returning.get(instance_id), not group.returning
    group.returning[instance_id] = returning
    if is_first:
        _next_record(table, group)
    fenced = KafkaError(ErrorCode.fenced_instance_id, f"another member has joined as instance {instance_id!r}")
    return Outcome(LATER, replies=() if earlier is None else [(earlier.waiter, fenced)])


def _next_record(table: GroupTable, group: ClassicGroup) -> None:
    returning = list(group.returning.values())[:MEMBERS_AT_ONCE]
    work = _take_over_if_unchanged(table, group, returning, group.changes)
    run_in_background(
        table.timers,
        ("static members", group.group_id),
        work,
        lambda _: _retry_all(group, ErrorCode.coordinator_not_available),
    )


def _take_over_if_unchanged(
    table: GroupTable, group: ClassicGroup, returning: Sequence[Returning], changes: int
) -> Work[Outcome]:
    def is_unchanged() -> bool:
        return table.groups.get(group.group_id) is group and group.changes == changes

    outcome = (yield from _take_over(table, group, returning)) if is_unchanged() else None
    if outcome is None or not is_unchanged():
        return _retry_all(group, ErrorCode.coordinator_load_in_progress)
    # A member whose instance was restarted again meanwhile has got its response, and is replaced by the next record.
    waiting = {each.waiter for each in group.returning.values()}
    outcome.replies = [reply for reply in outcome.replies if reply[0] in waiting]
    after = outcome.then
    assert after is not None

    def then() -> None:
        after()
        for each in returning:
            if group.returning.get(each.successor.group_instance_id or "") is each:
                del group.returning[each.successor.group_instance_id or ""]
        if group.returning:
            _next_record(table, group)

    outcome.then = then
    return outcome


def _retry_all(group: ClassicGroup, code: ErrorCode) -> Outcome:
    """Replies to all returning members with ``code``, on which clients retry."""
    replies = [(each.waiter, KafkaError(code)) for each in group.returning.values()]
    group.returning = {}
    return Outcome(replies=replies)


# The record.


def _take_over(table: GroupTable, group: ClassicGroup, returning: Sequence[Returning]) -> Work[Outcome]:
    """Replaces the predecessors by the returning members. The group must not change until the record is written.

    In a stable group no other request waits, so these get the only replies.
    """
    earlier = {}
    successors = {}
    for each in returning:
        member_id = group.static_ids[each.successor.group_instance_id or ""]
        earlier[member_id], successors[member_id] = group.members[member_id], each.successor
    members = [successors.get(member_id, member) for member_id, member in group.members.items()]
    leader_id = group.leader_id
    if leader_id in successors:
        leader_id = successors[leader_id].member_id
    assignments = {member.member_id: member.assignment for member in members}
    now_ms = table.clock.now_ms()
    prepared = Prepared(now_ms)
    prepared.add_encoded(*(yield from encoded_in_slices(group, members, leader_id, assignments, now_ms)))

    def install() -> None:
        group.replace(successors)
        group.rest(now_ms)

    def then() -> None:
        for member_id, member in earlier.items():
            table.timers.cancel(member.session_key)
            group.renew_session(successors[member_id])

    prepared.install = install
    replies = [(each.waiter, _joined(group, leader_id, members, each)) for each in returning]
    return Outcome(replies=replies, prepared=prepared, then=then)


def _joined(
    group: ClassicGroup, leader_id: str | None, members: Sequence[ClassicMember], returning: Returning
) -> dict[str, Any]:
    """Returns JoinGroup's body. A leader must not assign again, because no member would send SyncGroup.

    Before version 9 the response therefore names its predecessor as the leader.
    """
    successor = returning.successor
    body = {**joined_body(group, successor), "leader": leader_id, "members": []}
    if leader_id != successor.member_id:
        return body
    if returning.version < SKIPS_ASSIGNMENT:
        return {**body, "leader": group.leader_id}
    return {**body, "skip_assignment": True, "members": members_for_leader(members, group.protocol_name)}
