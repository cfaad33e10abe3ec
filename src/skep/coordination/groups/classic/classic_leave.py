"""Heartbeats, and how members of classic groups go: by LeaveGroup (KIP-345: several at once), or by being silent."""

import functools
import logging
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import (
    classic_group,
    complete_if_all_joined,
    forget_if_bare,
    remove_members,
)
from skep.coordination.groups.classic.classic_state import PREPARING_REBALANCE
from skep.coordination.shard import Operation, Outcome

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)

_ALIVE = Outcome({})
_REBALANCING = Outcome({"error_code": ErrorCode.rebalance_in_progress})
_LONGEST_REASON = 255


def session_of(group_id: str, member_id: str) -> tuple[Hashable, Operation]:
    """The key of a member's session timer, and what to do when it runs out."""
    return ("classic session", group_id, member_id), functools.partial(_silent, group_id, member_id)


def reason_shown(reason: str | None) -> str:
    """Why a client says it joins or leaves (KIP-800), as it goes into the log."""
    return repr(reason[:_LONGEST_REASON]) if reason else "no reason given"


def heartbeat(
    shard: "GroupShard", group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
) -> Outcome:
    group = classic_group(shard, group_id)
    if group is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"there is no group {group_id!r}")
    member = group.check_member(member_id, group_instance_id)
    if generation_id != group.generation_id:
        raise KafkaError(ErrorCode.illegal_generation, f"generation {generation_id}, it is {group.generation_id} now")
    group.heard_from(member)
    return _REBALANCING if group.state is PREPARING_REBALANCE else _ALIVE


def _silent(group_id: str, member_id: str, shard: "GroupShard") -> Outcome:
    """A session is over. Members that wait for the others are alive: their clients may not send anything meanwhile."""
    group = classic_group(shard, group_id)
    if group is None:
        return Outcome()
    if member_id in group.pending:
        return abandon(shard, group, [member_id])
    member = group.members.get(member_id)
    if member is None or (member.is_waiting and not member.is_new):
        return Outcome()
    if member.session_key in shard.timers:
        # Its going could not be written when the time was over, and it has been heard from since.
        return Outcome()
    return remove_members(shard, group, [member], f"{member_id!r} has been silent for too long")


def abandon(shard: "GroupShard", group: ClassicGroup, member_ids: Sequence[str]) -> Outcome:
    """Nobody is going to use these ids of ``pending``. Their timers go off without effect."""
    group.pending.difference_update(member_ids)
    forget_if_bare(shard, group)
    return complete_if_all_joined(shard, group)


class Leaving(NamedTuple):
    """One entry of a LeaveGroup. Without a member id an administrator removes the static member of that instance."""

    member_id: str
    group_instance_id: str | None
    reason: str | None


def leave(shard: "GroupShard", group_id: str, leaving: Sequence[Leaving]) -> Outcome:
    """The response is a list with each entry and its code."""
    group = classic_group(shard, group_id)
    going: dict[str, ClassicMember] = {}
    pending: list[str] = []
    answers = []
    for entry in leaving:
        code = ErrorCode.unknown_member_id
        if group is not None:
            code = _code_for(group, entry, going, pending)
        if code is ErrorCode.none:
            logger.info("group %r: %r leaves: %s", group_id, entry[:2], reason_shown(entry.reason))
        answers.append(_answer(entry, code))
    if group is None or not (going or pending):
        return Outcome(answers)
    if going:
        reason = f"{len(going)} members leave"
        outcome = remove_members(shard, group, list(going.values()), reason, abandoned=pending)
    else:
        outcome = abandon(shard, group, pending)
    outcome.response = answers
    return outcome


def _code_for(group: ClassicGroup, entry: Leaving, going: dict[str, ClassicMember], pending: list[str]) -> ErrorCode:
    """Adds whom the entry means to those who go. Nobody can go twice."""
    member_id = entry.member_id
    if not member_id and entry.group_instance_id is not None:
        member_id = group.static_ids.get(entry.group_instance_id, "")
    if member_id in group.pending and member_id not in pending:
        pending.append(member_id)
        return ErrorCode.none
    if not member_id or member_id in going:
        return ErrorCode.unknown_member_id
    try:
        going[member_id] = group.check_member(member_id, entry.group_instance_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def _answer(entry: Leaving, code: ErrorCode) -> dict[str, Any]:
    return {"member_id": entry.member_id, "group_instance_id": entry.group_instance_id, "error_code": code}
