"""A static member that was started anew (KIP-345): it comes without an id, and takes the place of its earlier self.

In a stable group that needs no rebalance as long as it asks for the same topics: it gets the assignment of the earlier
one. The new id is in the log before it is told, so the earlier one stays fenced over a restart. Kafka does not look at
the topics, and leaves those that were added without a reader until the next rebalance.

The record holds all members. That of a large group is made in slices, while the member waits. Those who come back
meanwhile wait for the next record, which has all of them: when thousands are started anew, few records are written.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from skep.coordination.groups.classic.join_request import JoinRequest, member_of
from skep.coordination.groups.classic_subscriptions import CONSUMER, subscribed_topics
from skep.coordination.shard import LATER, Outcome, Prepared, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

SKIPS_ASSIGNMENT = 9
SMALL_GROUP = 100
"""Members whose record is written without a pause: a few milliseconds."""
MEMBERS_AT_ONCE = 100
"""That come back with one record."""


def replace_static_member(
    shard: "GroupShard",
    group: ClassicGroup,
    member: ClassicMember,
    request: JoinRequest,
    member_id: str,
    waiter: Waiter,
) -> Outcome:
    successor = member_of(request, member_id)
    successor.assignment = member.assignment
    if group.state is STABLE and _asks_for_the_same(group, member, successor):
        more_bytes = max(0, successor.metadata_bytes - member.metadata_bytes)
        returning = Returning(successor, more_bytes, request.version, waiter)
        if len(group.members) > SMALL_GROUP:
            return _wait_for_record(shard, group, returning)
        outcome = run_at_once(_take_over(shard, group, [returning]))
        outcome.response = LATER
        return outcome
    replies = refusals(member, ErrorCode.fenced_instance_id)
    group.replace({member.member_id: successor})
    group.update(successor, successor.protocols, waiter)
    shard.timers.cancel(member.session_key)
    group.heard_from(successor)
    reason = f"{member_id!r} takes the place of {member.member_id!r}: {reason_shown(request.reason)}"
    outcome = rebalance(shard, group, reason)
    outcome.replies = [*replies, *outcome.replies]
    outcome.response = LATER
    return outcome


def _asks_for_the_same(group: ClassicGroup, member: ClassicMember, successor: ClassicMember) -> bool:
    """The protocol stays the chosen one, and the topics are the same; the rest of the metadata is the assignor's."""
    if [name for name, _ in member.protocols] != [name for name, _ in successor.protocols]:
        others = [successor if other is member else other for other in group.members.values()]
        if group.chosen_protocol(others) != group.protocol_name:
            return False
    if group.protocol_type != CONSUMER:
        return True
    before, after = (subscribed_topics(each.metadata(group.protocol_name)) for each in (member, successor))
    return before == after


# Large groups.


def _wait_for_record(shard: "GroupShard", group: ClassicGroup, returning: Returning) -> Outcome:
    instance_id = returning.successor.group_instance_id
    assert instance_id is not None
    earlier, is_first = group.returning.get(instance_id), not group.returning
    group.returning[instance_id] = returning
    if is_first:
        _next_record(shard, group)
    fenced = KafkaError(ErrorCode.fenced_instance_id, f"{instance_id!r} has been started once more")
    return Outcome(LATER, replies=() if earlier is None else [(earlier.waiter, fenced)])


def _next_record(shard: "GroupShard", group: ClassicGroup) -> None:
    returning = list(group.returning.values())[:MEMBERS_AT_ONCE]
    work = _take_over_if_unchanged(shard, group, returning, group.changes)
    run_in_background(
        shard.timers,
        ("static members", group.group_id),
        work,
        lambda _: _told_to_ask_again(group, ErrorCode.coordinator_not_available),
    )


def _take_over_if_unchanged(
    shard: "GroupShard", group: ClassicGroup, returning: Sequence[Returning], changes: int
) -> Work[Outcome]:
    def is_unchanged() -> bool:
        return shard.groups.get(group.group_id) is group and group.changes == changes

    outcome = (yield from _take_over(shard, group, returning)) if is_unchanged() else None
    if outcome is None or not is_unchanged():
        return _told_to_ask_again(group, ErrorCode.coordinator_load_in_progress)
    # Whoever was started once more meanwhile has been told so, and is the one whose place is taken next.
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
            _next_record(shard, group)

    outcome.then = then
    return outcome


def _told_to_ask_again(group: ClassicGroup, code: ErrorCode) -> Outcome:
    """The group has changed, or could not be written."""
    replies = [(each.waiter, KafkaError(code)) for each in group.returning.values()]
    group.returning = {}
    return Outcome(replies=replies)


# The record.


def _take_over(shard: "GroupShard", group: ClassicGroup, returning: Sequence[Returning]) -> Work[Outcome]:
    """The members take the places of their earlier selves, if the group does not change until this is written.

    In a stable group nobody waits for the group, so there is nobody else to be told.
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
    now_ms = shard.clock.now_ms()
    prepared = Prepared(now_ms)
    prepared.add_encoded(*(yield from encoded_in_slices(group, members, leader_id, assignments, now_ms)))

    def install() -> None:
        group.replace(successors)
        group.rest(now_ms)

    def then() -> None:
        for member_id, member in earlier.items():
            shard.timers.cancel(member.session_key)
            group.heard_from(successors[member_id])

    prepared.install = install
    replies = [(each.waiter, _joined(group, leader_id, members, each)) for each in returning]
    return Outcome(replies=replies, prepared=prepared, then=then)


def _joined(
    group: ClassicGroup, leader_id: str | None, members: Sequence[ClassicMember], returning: Returning
) -> dict[str, Any]:
    """A leader must not assign anew: nobody would ask for it. Before version 9 it is told that another one leads."""
    successor = returning.successor
    body = {**joined_body(group, successor), "leader": leader_id, "members": []}
    if leader_id != successor.member_id:
        return body
    if returning.version < SKIPS_ASSIGNMENT:
        return {**body, "leader": group.leader_id}
    return {**body, "skip_assignment": True, "members": members_for_leader(members, group.protocol_name)}
