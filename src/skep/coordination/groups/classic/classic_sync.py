"""SyncGroup to a classic group: the leader brings the assignment of a generation, the others wait for it.

The assignment is written before anybody learns of it, so a restart comes back to a group that knows what its members
do. When it cannot be written nothing has changed, and ``assignment_lost`` begins another rebalance: the leader's next
attempt may be smaller, or the disk have room again.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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
from skep.coordination.shard import LATER, Outcome, Prepared, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)

SMALL_ASSIGNMENT = 200
"""Members whose assignments are written without a pause: a few milliseconds."""


class SyncRequest(NamedTuple):
    """``assignments`` is by member id; empty but for the leader. A protocol that is None was not said (before v5)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


class PreparedSync(NamedTuple):
    """The record of an assignment, made from the group as it was after that many ``changes``."""

    group: ClassicGroup
    changes: int
    prepared: Prepared


def prepare_sync(shard: "GroupShard", request: SyncRequest) -> Work[PreparedSync | None]:
    """Encodes the record that ``sync`` writes for the leader of a large group. None when ``sync`` writes none."""
    group, member = _checked(shard, request)
    if group.state is not COMPLETING_REBALANCE or group.leader_id != member.member_id:
        return None
    changes, now_ms, assignments = group.changes, shard.clock.now_ms(), request.assignments
    prepared = Prepared(now_ms)
    # What a change of the group makes of these members does not matter: then the record is not used.
    members = list(group.members.values())
    prepared.add_encoded(*(yield from encoded_in_slices(group, members, group.leader_id, assignments, now_ms)))
    prepared.install = lambda: group.assign(assignments, now_ms)
    return PreparedSync(group, changes, prepared)


def sync(shard: "GroupShard", request: SyncRequest, waiter: Waiter, made: PreparedSync | None = None) -> Outcome:
    """The response is SyncGroup's body, or LATER. ``made`` is used if the group has not changed since.

    Refusals in order: unknown group or member, fenced instance; generation; protocol; the group rebalances.
    """
    group, member = _checked(shard, request)
    if group.state is not COMPLETING_REBALANCE:
        _has_asked(shard, group, member)
        return Outcome(_assigned_body(group, member.assignment))
    # Two requests of one member: the earlier connection is most likely gone, but nobody is left without an answer.
    replies = refusals(member, ErrorCode.rebalance_in_progress)
    if group.leader_id == member.member_id:
        is_current = made is not None and made.group is group and made.changes == group.changes
        return _assign(shard, group, member, request.assignments, replies, made if is_current else None)
    member.sync_waiter = waiter
    _has_asked(shard, group, member)
    return Outcome(LATER, replies=replies)


def _checked(shard: "GroupShard", request: SyncRequest) -> tuple[ClassicGroup, ClassicMember]:
    group = classic_group(shard, request.group_id)
    if group is None or group.is_empty:
        raise KafkaError(ErrorCode.unknown_member_id, f"there is no group {request.group_id!r} with members")
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(
            ErrorCode.illegal_generation, f"generation {request.generation_id}, it is {group.generation_id} now"
        )
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (
        None,
        group.protocol_name,
    ):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol, f"the group has {group.protocol_type!r}, {group.protocol_name!r}"
        )
    if group.state is PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.rebalance_in_progress, "the group rebalances")
    return group, member


def _assign(
    shard: "GroupShard",
    group: ClassicGroup,
    leader: ClassicMember,
    assignments: Mapping[str, bytes],
    replies: Replies,
    made: PreparedSync | None,
) -> Outcome:
    members = list(group.members.values())
    unassigned = sum(not assignments.get(member.member_id) for member in members)
    logger.info(
        "group %r: generation %d is assigned by %r, %d of %d members get nothing",
        group.group_id,
        group.generation_id,
        leader.member_id,
        unassigned,
        len(members),
    )
    waiting = [member for member in members if member.sync_waiter is not None and member is not leader]

    def end_waiting() -> None:
        leader.sync_waiter = None
        for member in waiting:
            member.sync_waiter = None
            group.heard_from(member)
        group.heard_from(leader)
        _has_asked(shard, group, leader)

    records = []
    if made is None:
        records = [stable_record(group, members, group.leader_id, assignments, shard.clock.now_ms())]
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


def _has_asked(shard: "GroupShard", group: ClassicGroup, member: ClassicMember) -> None:
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        shard.timers.cancel(sync_key(group.group_id))


def _assigned_body(group: ClassicGroup, assignment: bytes) -> dict[str, Any]:
    return {
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "assignment": assignment,
    }


def assignment_lost(shard: "GroupShard", group_id: str, generation_id: int, code: ErrorCode) -> Outcome:
    """The assignment that ``sync`` was to write is not in the log. Those who wait for it join again."""
    group = classic_group(shard, group_id)
    if group is None or group.state is not COMPLETING_REBALANCE or group.generation_id != generation_id:
        return Outcome()
    return prepare_rebalance(shard, group, f"the assignment could not be written: {code.name}")
