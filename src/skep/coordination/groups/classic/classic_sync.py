"""SyncGroup to a classic group: the leader sends the assignment of a generation, the others wait for it.

The assignment is written before any member gets it, so a restart loads a group with the assignments that its members
use. If it cannot be written nothing has changed, and ``assignment_lost`` starts another rebalance: the leader's next
assignment may be smaller, or the disk may have room again.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import (
    Replies,
    classic_group,
    prepare_rebalance,
    refusals,
    sync_key,
)
from skep.coordination.groups.classic.classic_records import encoded_in_slices, stable_record
from skep.coordination.groups.classic.classic_state import COMPLETING_REBALANCE, PREPARING_REBALANCE
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import LATER, Outcome, Prepared, Waiter

logger = logging.getLogger(__name__)

SMALL_ASSIGNMENT = 200
"""An assignment for up to this many members is written without a pause: a few milliseconds."""


class SyncRequest(NamedTuple):
    """``assignments`` is by member id, and empty unless the leader sends it. A protocol is None before version 5."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


class PreparedSync(NamedTuple):
    """The encoded record of an assignment, made from the group after that many ``changes``."""

    group: ClassicGroup
    changes: int
    prepared: Prepared


def prepare_sync(table: GroupTable, request: SyncRequest) -> Work[PreparedSync | None]:
    """Encodes the record that ``sync`` writes for the leader of a large group. Returns None if ``sync`` writes none."""
    group, member = _checked(table, request)
    if group.state is not COMPLETING_REBALANCE or group.leader_id != member.member_id:
        return None
    changes, now_ms, assignments = group.changes, table.clock.now_ms(), request.assignments
    prepared = Prepared(now_ms)
    # Members that change meanwhile do no harm: then the record is not used.
    members = list(group.members.values())
    prepared.add_encoded(*(yield from encoded_in_slices(group, members, group.leader_id, assignments, now_ms)))
    prepared.install = lambda: group.assign(assignments, now_ms)
    return PreparedSync(group, changes, prepared)


def sync(table: GroupTable, request: SyncRequest, waiter: Waiter, made: PreparedSync | None = None) -> Outcome:
    """The response is SyncGroup's body, or LATER. ``made`` is used if the group has not changed since.

    Refusals in order: unknown group or member, fenced instance; generation; protocol; rebalance in progress.
    """
    group, member = _checked(table, request)
    if group.state is not COMPLETING_REBALANCE:
        _sync_received(table, group, member)
        return Outcome(_assigned_body(group, member.assignment))
    # A second request of the same member: its earlier connection is probably closed, but every request gets a response.
    replies = refusals(member, ErrorCode.rebalance_in_progress)
    if group.leader_id == member.member_id:
        is_current = made is not None and made.group is group and made.changes == group.changes
        return _assign(table, group, member, request.assignments, replies, made if is_current else None)
    member.sync_waiter = waiter
    _sync_received(table, group, member)
    return Outcome(LATER, replies=replies)


def _checked(table: GroupTable, request: SyncRequest) -> tuple[ClassicGroup, ClassicMember]:
    group = classic_group(table, request.group_id)
    if group is None or group.is_empty:
        raise KafkaError(ErrorCode.unknown_member_id, f"group {request.group_id!r} has no members")
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(
            ErrorCode.illegal_generation, f"generation {request.generation_id} is not the current {group.generation_id}"
        )
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (
        None,
        group.protocol_name,
    ):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"the protocol of the group is {group.protocol_type!r}, {group.protocol_name!r}",
        )
    if group.state is PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.rebalance_in_progress, f"group {group.group_id!r} rebalances")
    return group, member


def _assign(
    table: GroupTable,
    group: ClassicGroup,
    leader: ClassicMember,
    assignments: Mapping[str, bytes],
    replies: Replies,
    made: PreparedSync | None,
) -> Outcome:
    members = list(group.members.values())
    unassigned = sum(not assignments.get(member.member_id) for member in members)
    logger.info(
        "group %r: %r assigns generation %d; %d of %d members get nothing",
        group.group_id,
        leader.member_id,
        group.generation_id,
        unassigned,
        len(members),
    )
    waiting = [member for member in members if member.sync_waiter is not None and member is not leader]

    def end_waiting() -> None:
        leader.sync_waiter = None
        for member in waiting:
            member.sync_waiter = None
            group.renew_session(member)
        group.renew_session(leader)
        _sync_received(table, group, leader)

    records = []
    if made is None:
        records = [stable_record(group, members, group.leader_id, assignments, table.clock.now_ms())]
    return Outcome(
        response=_assigned_body(group, assignments.get(leader.member_id, b"")),
        records=records,
        prepared=None if made is None else made.prepared,
        replies=[
            *replies,
            *(
                (member.sync_waiter, _assigned_body(group, assignments.get(member.member_id, b"")))
                for member in waiting
            ),
        ],
        then=end_waiting,
    )


def _sync_received(table: GroupTable, group: ClassicGroup, member: ClassicMember) -> None:
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        table.timers.cancel(sync_key(group.group_id))


def _assigned_body(group: ClassicGroup, assignment: bytes) -> dict[str, Any]:
    return {
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "assignment": assignment,
    }


def assignment_lost(table: GroupTable, group_id: str, generation_id: int, code: ErrorCode) -> Outcome:
    """Starts a rebalance because the assignment of ``sync`` could not be written."""
    group = classic_group(table, group_id)
    if group is None or group.state is not COMPLETING_REBALANCE or group.generation_id != generation_id:
        return Outcome()
    return prepare_rebalance(table, group, f"the assignment could not be written: {code.name}")
