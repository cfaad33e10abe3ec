"""Heartbeats of classic groups, and how members leave: by LeaveGroup (KIP-345), or because their session expires."""

import functools
import logging
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import (
    classic_group,
    complete_if_all_joined,
    drop_if_unused,
    remove_members,
)
from skep.coordination.groups.classic.classic_state import PREPARING_REBALANCE
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import Operation, Outcome

logger = logging.getLogger(__name__)

_ALIVE = Outcome({})
_REBALANCING = Outcome({"error_code": ErrorCode.rebalance_in_progress})
_LONGEST_REASON = 255


def session_of(group_id: str, member_id: str) -> tuple[Hashable, Operation]:
    """Returns the key of a member's session timer, and the operation for when it expires."""
    return ("classic session", group_id, member_id), functools.partial(_session_expired, group_id, member_id)


def reason_shown(reason: str | None) -> str:
    """The reason that a client gives for joining or leaving (KIP-800), for the broker's log."""
    return repr(reason[:_LONGEST_REASON]) if reason else "no reason given"


def heartbeat(
    table: GroupTable, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
) -> Outcome:
    group = classic_group(table, group_id)
    if group is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"group {group_id!r} does not exist")
    member = group.check_member(member_id, group_instance_id)
    if generation_id != group.generation_id:
        raise KafkaError(
            ErrorCode.illegal_generation, f"generation {generation_id} is not the current {group.generation_id}"
        )
    group.renew_session(member)
    return _REBALANCING if group.state is PREPARING_REBALANCE else _ALIVE


def _session_expired(group_id: str, member_id: str, table: GroupTable) -> Outcome:
    """Removes a member whose session has expired.

    A member that waits for a response stays, unless it is new: its client sends nothing meanwhile.
    """
    group = classic_group(table, group_id)
    if group is None:
        return Outcome()
    if member_id in group.pending:
        return abandon(table, group, [member_id])
    member = group.members.get(member_id)
    if member is None or (member.is_waiting and not member.is_new):
        return Outcome()
    if member.session_key in table.timers:
        # A retry: its removal could not be written when the session expired, and its session was restarted since.
        return Outcome()
    return remove_members(table, group, [member], f"the session of {member_id!r} has expired")


def abandon(table: GroupTable, group: ClassicGroup, member_ids: Sequence[str]) -> Outcome:
    """Drops member ids of ``pending`` that will not be used. Their timers expire without effect."""
    group.pending.difference_update(member_ids)
    drop_if_unused(table, group)
    return complete_if_all_joined(table, group)


class Leaving(NamedTuple):
    """One entry of LeaveGroup. An administrator removes a static member by its instance id alone."""

    member_id: str
    group_instance_id: str | None
    reason: str | None


def leave(table: GroupTable, group_id: str, leaving: Sequence[Leaving]) -> Outcome:
    """The response is a list with the error code of each entry."""
    group = classic_group(table, group_id)
    removed: dict[str, ClassicMember] = {}
    pending: list[str] = []
    responses = []
    for entry in leaving:
        code = ErrorCode.unknown_member_id
        if group is not None:
            code = _take(group, entry, removed, pending)
        if code is ErrorCode.none:
            logger.info("group %r: %r leaves: %s", group_id, entry[:2], reason_shown(entry.reason))
        responses.append(
            {"member_id": entry.member_id, "group_instance_id": entry.group_instance_id, "error_code": code}
        )
    if group is None or not (removed or pending):
        return Outcome(responses)
    if removed:
        reason = f"{len(removed)} members leave"
        outcome = remove_members(table, group, list(removed.values()), reason, abandoned=pending)
    else:
        outcome = abandon(table, group, pending)
    outcome.response = responses
    return outcome


def _take(group: ClassicGroup, entry: Leaving, removed: dict[str, ClassicMember], pending: list[str]) -> ErrorCode:
    """Adds the member of the entry to ``removed`` or ``pending``, once, and returns the entry's code."""
    member_id = entry.member_id
    if not member_id and entry.group_instance_id is not None:
        member_id = group.static_ids.get(entry.group_instance_id, "")
    if member_id in group.pending and member_id not in pending:
        pending.append(member_id)
        return ErrorCode.none
    if not member_id or member_id in removed:
        return ErrorCode.unknown_member_id
    try:
        removed[member_id] = group.check_member(member_id, entry.group_instance_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.none
