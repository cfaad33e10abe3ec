"""A static member that was started anew (KIP-345): it comes without an id, and takes the place of its earlier self.

In a stable group that needs no rebalance as long as it asks for the same topics: it gets the assignment of the earlier
one. The new id is in the log before it is told, so the earlier one stays fenced over a restart. Kafka does not look at
the topics, and leaves those that were added without a reader until the next rebalance.
"""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.coordination.groups.classic_group import ClassicGroup
from skep.coordination.groups.classic_join_request import JoinRequest, member_of
from skep.coordination.groups.classic_leaving import reason_shown
from skep.coordination.groups.classic_member import ClassicMember
from skep.coordination.groups.classic_rebalancing import joined_body, members_for_leader, rebalance, refusals
from skep.coordination.groups.classic_records import stable_record
from skep.coordination.groups.classic_states import STABLE
from skep.coordination.groups.classic_subscriptions import CONSUMER, subscribed_topics
from skep.coordination.shard import LATER, Outcome, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.shard import GroupShard

SKIPS_ASSIGNMENT = 9


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
        return _take_over(shard, group, member, successor, request.version)
    replies = refusals(member, ErrorCode.fenced_instance_id)
    group.replace(member, successor)
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
    others = [successor if other is member else other for other in group.members.values()]
    if group.chosen_protocol(others) != group.protocol_name:
        return False
    if group.protocol_type != CONSUMER:
        return True
    before, after = (subscribed_topics(each.metadata(group.protocol_name)) for each in (member, successor))
    return before == after


def _take_over(
    shard: "GroupShard", group: ClassicGroup, member: ClassicMember, successor: ClassicMember, version: int
) -> Outcome:
    """The record makes the change; what it does not hold (the protocols not chosen, the timer) follows it.

    In a stable group nobody waits, so there is nobody to be told.
    """
    members = [successor if other is member else other for other in group.members.values()]
    was_leader = group.leader_id == member.member_id
    leader_id = successor.member_id if was_leader else group.leader_id
    assignments = {each.member_id: each.assignment for each in members}

    def begin_session() -> None:
        current = group.members[successor.member_id]
        group.update(current, successor.protocols, None)
        shard.timers.cancel(member.session_key)
        group.heard_from(current)

    return Outcome(
        response=_answer(group, successor, was_leader, version),
        records=[stable_record(group, members, leader_id, assignments, shard.clock.now_ms())],
        then=begin_session,
    )


def _answer(group: ClassicGroup, successor: ClassicMember, was_leader: bool, version: int) -> dict[str, Any]:
    """A leader must not assign anew: nobody would ask for it. Before version 9 it is told that another one leads."""
    answer = {**joined_body(group, successor), "members": []}
    if was_leader and version >= SKIPS_ASSIGNMENT:
        answer["leader"] = successor.member_id
        answer["skip_assignment"] = True
        answer["members"] = [
            {**each, "member_id": successor.member_id, "metadata": successor.metadata(group.protocol_name)}
            if each["group_instance_id"] == successor.group_instance_id
            else each
            for each in members_for_leader(group)
        ]
    return answer
