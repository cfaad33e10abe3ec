"""JoinGroup to a classic group: which members may join, with which id, and whether a rebalance starts.

A new dynamic member first gets an id and joins again with it (KIP-394, from version 4 on): otherwise a client that
gives up and starts over would leave a member behind each time. Static members (KIP-345) are in ``static_member``.
"""

import logging

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import abandon, reason_shown, session_of
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import complete_if_all_joined, joined_body, rebalance, refusals
from skep.coordination.groups.classic.classic_state import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from skep.coordination.groups.classic.join_request import JoinRequest, member_of, new_member_id
from skep.coordination.groups.classic.static_member import replace_static_member
from skep.coordination.groups.group_memory import MEMBER_BYTES, has_memory
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.metadata_size import has_room, too_large
from skep.coordination.shard import LATER, Outcome, Waiter

logger = logging.getLogger(__name__)

REQUIRES_MEMBER_ID = 4
NEW_MEMBER_TIMEOUT_MS = 300_000
"""The longest wait of a new member for its first generation, as in Kafka (see ``ClassicMember.is_new``)."""
PENDING_TIMEOUT_MS = 60_000
"""How long a new member id is kept, unless the session timeout is shorter. Clients join again at once."""
MAX_NAME_BYTES = 32_767 - 37
"""The longest string of a record, less the UUID that is added to an instance id to make a member id."""


def join(table: GroupTable, request: JoinRequest, waiter: Waiter) -> Outcome:
    """The response is JoinGroup's body, or LATER.

    Refusals in order: names too long; session timeout; unknown group; group full or too large; protocols; unknown or
    fenced member.
    """
    check_request(table, request)
    group = _group_to_join(table, request)
    if not _has_place(table, group, request.member_id):
        return _refuse_member(table, group, request.member_id)
    if not _has_room(table, group, request):
        if request.member_id in group.members:
            raise too_large(table.config)
        return _refuse_member(table, group, request.member_id)
    if not group.supports(request.protocol_type, request.protocols):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"not all members of group {request.group_id!r} support {request.protocol_type!r}"
            f" with one of {[name for name, _ in request.protocols]}",
        )
    if not request.member_id:
        return _join_as_new(table, group, request, waiter)
    if request.member_id in group.pending and request.group_instance_id is None:
        return admit(table, group, request, request.member_id, waiter)
    member = group.check_member(request.member_id, request.group_instance_id)
    return _join_again(table, group, member, request, waiter)


def check_request(table: GroupTable, request: JoinRequest) -> None:
    names = (request.protocol_type, request.group_instance_id or "", *(name for name, _ in request.protocols))
    if any(len(name) > MAX_NAME_BYTES // 4 and len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise KafkaError(ErrorCode.invalid_request, f"a name is longer than {MAX_NAME_BYTES} bytes")
    settings = table.config
    shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        raise KafkaError(
            ErrorCode.invalid_session_timeout,
            f"session timeout of {request.session_timeout_ms} ms; {shortest} to {longest} ms are allowed"
            " (group.min.session.timeout.ms, group.max.session.timeout.ms)",
        )


def _group_to_join(table: GroupTable, request: JoinRequest) -> ClassicGroup:
    """Returns the group. A new one is added to the shard only with its first member or member id."""
    group = table.groups.get(request.group_id)
    if isinstance(group, ClassicGroup):
        return group
    if group is not None:
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol, f"group {request.group_id!r} is a {group.type_name} group"
        )
    if request.member_id:
        raise KafkaError(ErrorCode.unknown_member_id, f"group {request.group_id!r} does not exist")
    if not table.offsets.has_offsets(request.group_id):
        table.check_room()
    return ClassicGroup(request.group_id, table.clock, table.timers)


def _has_place(table: GroupTable, group: ClassicGroup, member_id: str) -> bool:
    """Whether group.max.size allows the member. During a rebalance, members that have not rejoined do not count."""
    member = group.members.get(member_id)
    if member is not None and (member.join_waiter is not None or group.state is not PREPARING_REBALANCE):
        return True
    taken = group.waiting_to_join if group.state is PREPARING_REBALANCE else len(group.members)
    if not member_id:
        # Ids that were handed out count too, or their number would have no bound.
        taken += len(group.pending)
    return taken < table.config.group_max_size


def _has_room(table: GroupTable, group: ClassicGroup, request: JoinRequest) -> bool:
    known = request.member_id or group.static_ids.get(request.group_instance_id or "", "")
    member = group.members.get(known)
    before = member.metadata_bytes if member is not None else 0
    after = member_of(request, known).metadata_bytes
    expected = group.metadata_bytes + sum(returning.more_bytes for returning in group.returning.values())
    return has_room(table.config, expected, before, after) and (
        after <= before or has_memory(table.config, table.used_bytes(), MEMBER_BYTES + after - before)
    )


def _refuse_member(table: GroupTable, group: ClassicGroup, member_id: str) -> Outcome:
    outcome = Outcome()
    if member_id in group.pending:
        outcome = abandon(table, group, [member_id])
    elif (member := group.members.get(member_id)) is not None:
        # The limit has been lowered: the last members to rejoin are removed.
        group.remove(member)
        outcome = complete_if_all_joined(table, group)
    outcome.response = {"error_code": ErrorCode.group_max_size_reached, "member_id": ""}
    return outcome


def _join_as_new(table: GroupTable, group: ClassicGroup, request: JoinRequest, waiter: Waiter) -> Outcome:
    member_id = new_member_id(request)
    if request.group_instance_id is not None:
        current = group.static_ids.get(request.group_instance_id)
        if current is not None:
            return replace_static_member(table, group, group.members[current], request, member_id, waiter)
    elif request.version >= REQUIRES_MEMBER_ID:
        table.groups[request.group_id] = group
        group.pending.add(member_id)
        group.has_grown = group.is_initial_rebalance  # it will join at once with its id
        session_key, on_session_expired = session_of(request.group_id, member_id)
        table.timers.schedule(session_key, min(request.session_timeout_ms, PENDING_TIMEOUT_MS), on_session_expired)
        return Outcome({"error_code": ErrorCode.member_id_required, "member_id": member_id})
    return admit(table, group, request, member_id, waiter)


def admit(table: GroupTable, group: ClassicGroup, request: JoinRequest, member_id: str, waiter: Waiter) -> Outcome:
    """Adds a new member, which waits for the next generation."""
    member = member_of(request, member_id)
    member.join_waiter, member.is_new = waiter, True
    table.groups[request.group_id] = group
    group.protocol_type = request.protocol_type
    group.has_grown = group.is_initial_rebalance
    group.add(member)
    table.timers.schedule(member.session_key, NEW_MEMBER_TIMEOUT_MS, member.on_session_expired)
    outcome = rebalance(table, group, f"{member_id!r} joins: {reason_shown(request.reason)}")
    outcome.response = LATER
    return outcome


def _join_again(
    table: GroupTable, group: ClassicGroup, member: ClassicMember, request: JoinRequest, waiter: Waiter
) -> Outcome:
    """A member without changes gets the current generation: the response to its last join may have been lost.

    The leader of a stable group starts a rebalance: it joins because something calls for another assignment.
    """
    has_changed = member.protocols != request.protocols
    is_leader = group.leader_id == member.member_id
    if not has_changed and (group.state is COMPLETING_REBALANCE or (group.state is STABLE and not is_leader)):
        return Outcome(joined_body(group, member))
    assert group.state is not EMPTY
    # A second request of the same member: its earlier connection is probably closed, but every request gets a response.
    replies = refusals(member, ErrorCode.rebalance_in_progress)
    member.sync_waiter = None
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    group.update(member, request.protocols, waiter)
    what = "has changed" if has_changed else "leads and joins again"
    outcome = rebalance(table, group, f"{member.member_id!r} {what}: {reason_shown(request.reason)}")
    outcome.replies = [*replies, *outcome.replies]
    outcome.response = LATER
    return outcome
