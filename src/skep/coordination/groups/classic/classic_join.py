"""JoinGroup to a classic group: who is let in, under which id, and whether that begins a rebalance.

A new dynamic member is first given an id and asked to come back with it (KIP-394, from version 4 on): a client that
gives up and starts over would otherwise leave a member behind each time. Static members (KIP-345) are in
``classic_static``.
"""

import logging
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import abandon, reason_shown, session_of
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import complete_if_all_joined, joined_body, rebalance, refusals
from skep.coordination.groups.classic.classic_state import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from skep.coordination.groups.classic.join_request import JoinRequest, member_of, new_member_id
from skep.coordination.groups.classic.static_member import replace_static_member
from skep.coordination.groups.group_memory import MEMBER_BYTES, has_memory
from skep.coordination.groups.metadata_size import has_room, too_large
from skep.coordination.shard import LATER, Outcome, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)

REQUIRES_MEMBER_ID = 4
NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first generation, as in Kafka (see ``ClassicMember.is_new``)."""
PENDING_TIMEOUT_MS = 60_000
"""How long an id is kept for one that was given it, or a session if that is shorter. Clients come back at once."""
MAX_NAME_BYTES = 32_767 - 37
"""What a text of a record can hold, less the UUID that makes an instance id a member id."""


def join(shard: "GroupShard", request: JoinRequest, waiter: Waiter) -> Outcome:
    """The response is JoinGroup's body, or LATER.

    Refusals in order: names too long; session timeout; unknown group; group full or too large; protocols; unknown or
    fenced member.
    """
    check_request(shard, request)
    group = _group_to_join(shard, request)
    if not _has_place(shard, group, request.member_id):
        return _turned_away(shard, group, request.member_id)
    if not _has_room(shard, group, request):
        if request.member_id in group.members:
            raise too_large(shard.settings())
        return _turned_away(shard, group, request.member_id)
    if not group.supports(request.protocol_type, request.protocols):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"{request.protocol_type!r} with {[name for name, _ in request.protocols]} does not fit the group",
        )
    if not request.member_id:
        return _join_as_new(shard, group, request, waiter)
    if request.member_id in group.pending and request.group_instance_id is None:
        return admit(shard, group, request, request.member_id, waiter)
    member = group.check_member(request.member_id, request.group_instance_id)
    return _join_again(shard, group, member, request, waiter)


def check_request(shard: "GroupShard", request: JoinRequest) -> None:
    names = (request.protocol_type, request.group_instance_id or "", *(name for name, _ in request.protocols))
    if any(len(name) > MAX_NAME_BYTES // 4 and len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise KafkaError(ErrorCode.invalid_request, f"a name has more than {MAX_NAME_BYTES} bytes")
    settings = shard.settings()
    shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        raise KafkaError(
            ErrorCode.invalid_session_timeout,
            f"a session of {request.session_timeout_ms} ms, where {shortest} to {longest} ms are allowed",
        )


def _group_to_join(shard: "GroupShard", request: JoinRequest) -> ClassicGroup:
    """The group, which is kept in the shard only once somebody is in it."""
    group = shard.groups.get(request.group_id)
    if isinstance(group, ClassicGroup):
        return group
    if group is not None:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"{request.group_id!r} is a {group.type_name} group")
    if request.member_id:
        raise KafkaError(ErrorCode.unknown_member_id, f"there is no group {request.group_id!r}")
    if not shard.offsets.has_offsets(request.group_id):
        shard.check_room()
    return ClassicGroup(request.group_id, shard.clock, shard.timers)


def _has_place(shard: "GroupShard", group: ClassicGroup, member_id: str) -> bool:
    """Members that are expected again but have not come do not count while the group rebalances: they may be gone."""
    member = group.members.get(member_id)
    if member is not None and (member.join_waiter is not None or group.state is not PREPARING_REBALANCE):
        return True
    taken = group.waiting_to_join if group.state is PREPARING_REBALANCE else len(group.members)
    if not member_id:
        # An id that is handed out takes a place already, or their number would have no bound.
        taken += len(group.pending)
    return taken < shard.settings().group_max_size


def _has_room(shard: "GroupShard", group: ClassicGroup, request: JoinRequest) -> bool:
    known = request.member_id or group.static_ids.get(request.group_instance_id or "", "")
    member = group.members.get(known)
    before = member.metadata_bytes if member is not None else 0
    after = member_of(request, known).metadata_bytes
    expected = group.metadata_bytes + sum(returning.more_bytes for returning in group.returning.values())
    return has_room(shard.settings(), expected, before, after) and (
        after <= before or has_memory(shard.settings(), shard.used_bytes(), MEMBER_BYTES + after - before)
    )


def _turned_away(shard: "GroupShard", group: ClassicGroup, member_id: str) -> Outcome:
    outcome = Outcome()
    if member_id in group.pending:
        outcome = abandon(shard, group, [member_id])
    elif (member := group.members.get(member_id)) is not None:
        # The limit has been lowered: who comes last has to go.
        group.remove(member)
        outcome = complete_if_all_joined(shard, group)
    outcome.response = {"error_code": ErrorCode.group_max_size_reached, "member_id": ""}
    return outcome


def _join_as_new(shard: "GroupShard", group: ClassicGroup, request: JoinRequest, waiter: Waiter) -> Outcome:
    member_id = new_member_id(request)
    if request.group_instance_id is not None:
        current = group.static_ids.get(request.group_instance_id)
        if current is not None:
            return replace_static_member(shard, group, group.members[current], request, member_id, waiter)
    elif request.version >= REQUIRES_MEMBER_ID:
        shard.groups[request.group_id] = group
        group.pending.add(member_id)
        session_key, on_silence = session_of(request.group_id, member_id)
        shard.timers.schedule(session_key, min(request.session_timeout_ms, PENDING_TIMEOUT_MS), on_silence)
        return Outcome({"error_code": ErrorCode.member_id_required, "member_id": member_id})
    return admit(shard, group, request, member_id, waiter)


def admit(shard: "GroupShard", group: ClassicGroup, request: JoinRequest, member_id: str, waiter: Waiter) -> Outcome:
    """A new member: it waits for the next generation."""
    member = member_of(request, member_id)
    member.join_waiter, member.is_new = waiter, True
    shard.groups[request.group_id] = group
    group.protocol_type = request.protocol_type
    group.has_grown = group.is_initial_rebalance
    group.add(member)
    shard.timers.schedule(member.session_key, NEW_MEMBER_TIMEOUT_MS, member.on_silence)
    outcome = rebalance(shard, group, f"{member_id!r} joins: {reason_shown(request.reason)}")
    outcome.response = LATER
    return outcome


def _join_again(
    shard: "GroupShard", group: ClassicGroup, member: ClassicMember, request: JoinRequest, waiter: Waiter
) -> Outcome:
    """A member that has nothing new to say is told the generation of now; perhaps it missed the answer.

    The leader of a stable group joins because it has seen something that calls for another assignment.
    """
    has_changed = member.protocols != request.protocols
    is_leader = group.leader_id == member.member_id
    if not has_changed and (group.state is COMPLETING_REBALANCE or (group.state is STABLE and not is_leader)):
        return Outcome(joined_body(group, member))
    assert group.state is not EMPTY
    # Two requests of one member: the earlier connection is most likely gone, but nobody is left without an answer.
    replies = refusals(member, ErrorCode.rebalance_in_progress)
    member.sync_waiter = None
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    group.update(member, request.protocols, waiter)
    what = "has changed" if has_changed else "leads and joins again"
    outcome = rebalance(shard, group, f"{member.member_id!r} {what}: {reason_shown(request.reason)}")
    outcome.replies = [*replies, *outcome.replies]
    outcome.response = LATER
    return outcome
