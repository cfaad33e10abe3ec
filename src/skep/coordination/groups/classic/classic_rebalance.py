"""How a classic group gets from one generation to the next: who is waited for, for how long, and who is left behind.

The decisions of Kafka's GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, expirePendingSync). They have
no records, and so change the group at once, with one exception: the last member's going is written down, and the
members are gone when that record is replayed.
"""

import functools
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from skep.coordination.shard import Outcome, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)

_BEFORE_ASKING_AGAIN_MS = 1000

Replies = list[tuple[Waiter, Any]]


def join_key(group_id: str) -> Hashable:
    """The timer that ends the wait for members to join."""
    return ("classic join", group_id)


def sync_key(group_id: str) -> Hashable:
    """The timer that ends the wait for members to ask for their assignment."""
    return ("classic sync", group_id)


def classic_group(shard: "GroupShard", group_id: str) -> ClassicGroup | None:
    """The group if it is there and is (still) a classic one."""
    group = shard.groups.get(group_id)
    return group if isinstance(group, ClassicGroup) else None


# Beginning and ending the wait.


def rebalance(shard: "GroupShard", group: ClassicGroup, reason: str) -> Outcome:
    """A member has joined: begins a rebalance, or ends the one under way if it was the last that was waited for."""
    if group.state in CAN_REBALANCE:
        return prepare_rebalance(shard, group, reason)
    return complete_if_all_joined(shard, group)


def prepare_rebalance(shard: "GroupShard", group: ClassicGroup, reason: str) -> Outcome:
    """Members are to join again; those who wait for an assignment of the generation that ends here are told so."""
    logger.info("group %r, generation %d: rebalance: %s", group.group_id, group.generation_id, reason)
    replies: Replies = []
    if group.state is COMPLETING_REBALANCE:
        replies = _end_syncing(group)
    group.pending_sync.clear()
    shard.timers.cancel(sync_key(group.group_id))
    group.become(PREPARING_REBALANCE)
    if group.is_initial_rebalance:
        delay_ms = shard.settings().group_initial_rebalance_delay_ms
        _wait_for_more(shard, group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        return Outcome(replies=replies)
    if group.have_all_joined:
        outcome = complete_join(shard, group)
        outcome.replies = [*replies, *outcome.replies]
        return outcome
    _wait_for_members(shard, group)
    return Outcome(replies=replies)


def _end_syncing(group: ClassicGroup) -> Replies:
    replies: Replies = []
    for member in group.members.values():
        member.assignment = b""
        if member.sync_waiter is not None:
            replies.append((member.sync_waiter, KafkaError(ErrorCode.rebalance_in_progress, "the group rebalances")))
            member.sync_waiter = None
            group.heard_from(member)
    return replies


def _wait_for_members(shard: "GroupShard", group: ClassicGroup, at_least_ms: int = 0) -> None:
    delay_ms = max(group.rebalance_timeout_ms, at_least_ms)
    shard.timers.schedule(join_key(group.group_id), delay_ms, functools.partial(_join_timeout, group.group_id))


def _wait_for_more(shard: "GroupShard", group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
    operation = functools.partial(_initial_delay_over, group.group_id, delay_ms, remaining_ms)
    shard.timers.schedule(join_key(group.group_id), delay_ms, operation)


def _join_timeout(group_id: str, shard: "GroupShard") -> Outcome:
    group = classic_group(shard, group_id)
    if group is None or group.state is not PREPARING_REBALANCE or join_key(group_id) in shard.timers:
        # The last one is another rebalance: the end of the one before could not be written in time.
        return Outcome()
    return complete_join(shard, group)


def _initial_delay_over(group_id: str, delay_ms: int, remaining_ms: int, shard: "GroupShard") -> Outcome:
    """Members came during the delay: there may be more, so it begins anew, up to the rebalance timeout in all."""
    group = classic_group(shard, group_id)
    if group is None or not group.is_initial_rebalance:
        return Outcome()
    if group.has_grown and remaining_ms:
        group.has_grown = False
        next_delay_ms = min(shard.settings().group_initial_rebalance_delay_ms, remaining_ms)
        _wait_for_more(shard, group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        return Outcome()
    return complete_join(shard, group)


def complete_if_all_joined(shard: "GroupShard", group: ClassicGroup) -> Outcome:
    """The initial delay is waited out even so: more may come."""
    if group.state is PREPARING_REBALANCE and not group.is_initial_rebalance and group.have_all_joined:
        return complete_join(shard, group)
    return Outcome()


def complete_join(shard: "GroupShard", group: ClassicGroup) -> Outcome:
    """The wait for members is over. Those who did not come are out, but for static ones, who have their session."""
    missing = [member for member in group.members.values() if member.join_waiter is None and not member.is_static]
    if len(missing) == len(group.members):
        return _emptied(shard, group, [])
    shard.timers.cancel(join_key(group.group_id))
    for member in missing:
        shard.timers.cancel(member.session_key)
        group.remove(member)
    if missing:
        logger.info("group %r: %d members did not join again and are out", group.group_id, len(missing))
    if not _elect_leader(group):
        # Only static members, and none of them came: their sessions decide. Their rebalance timeout may be 0.
        _wait_for_members(shard, group, at_least_ms=_BEFORE_ASKING_AGAIN_MS)
        return Outcome()
    group.begin_generation()
    replies = []
    for_all = _joined_body(group)
    for member in group.members.values():
        if member.join_waiter is not None:
            replies.append((group.take_join_waiter(member), joined_body(group, member, for_all)))
        member.is_new = False
        group.heard_from(member)
    operation = functools.partial(_sync_timeout, group.group_id, group.generation_id)
    shard.timers.schedule(sync_key(group.group_id), group.rebalance_timeout_ms, operation)
    logger.info("group %r: generation %d has %d members", group.group_id, group.generation_id, len(group.members))
    return Outcome(replies=replies)


def _elect_leader(group: ClassicGroup) -> bool:
    """The leader stays if it has joined again; otherwise one that has."""
    assert group.leader_id is not None
    if group.members[group.leader_id].join_waiter is None:
        joined = next((member for member in group.members.values() if member.join_waiter is not None), None)
        if joined is None:
            return False
        group.leader_id = joined.member_id
    return True


def joined_body(group: ClassicGroup, member: ClassicMember, for_all: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """JoinGroup's answer in the generation of now. Only the leader is told of the others."""
    body = {**(for_all or _joined_body(group)), "member_id": member.member_id}
    if group.leader_id == member.member_id:
        body["members"] = members_for_leader(group.members.values(), group.protocol_name)
    return body


def _joined_body(group: ClassicGroup) -> dict[str, Any]:
    """What is the same for all who are not the leader."""
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


def _sync_timeout(group_id: str, generation_id: int, shard: "GroupShard") -> Outcome:
    """Members that joined and did not ask for their assignment in time are out."""
    group = classic_group(shard, group_id)
    if group is None or group.generation_id != generation_id or group.state not in (COMPLETING_REBALANCE, STABLE):
        return Outcome()
    if not group.pending_sync:
        return Outcome()
    silent = [group.members[member_id] for member_id in group.pending_sync]
    return remove_members(shard, group, silent, f"{len(silent)} members have not asked for their assignment")


# Members that go.


def remove_members(
    shard: "GroupShard",
    group: ClassicGroup,
    going: Sequence[ClassicMember],
    reason: str,
    abandoned: Sequence[str] = (),
) -> Outcome:
    """They are told that they are not members, if they wait; the others rebalance.

    ``abandoned`` are ids of ``pending`` that nobody is going to use.
    """
    replies = [reply for member in going for reply in refusals(member, ErrorCode.unknown_member_id)]
    if len(going) == len(group.members):
        return _emptied(shard, group, replies, abandoned)
    group.pending.difference_update(abandoned)
    for member in going:
        shard.timers.cancel(member.session_key)
        group.remove(member)
    outcome = rebalance(shard, group, reason)
    outcome.replies = [*replies, *outcome.replies]
    return outcome


def refusals(member: ClassicMember, code: ErrorCode) -> Replies:
    """What a member that waits is told when it can wait no longer."""
    waiters = (member.join_waiter, member.sync_waiter)
    return [(waiter, KafkaError(code)) for waiter in waiters if waiter is not None]


def _emptied(shard: "GroupShard", group: ClassicGroup, replies: Replies, abandoned: Sequence[str] = ()) -> Outcome:
    """The last member goes, and with it the group, unless the log has heard of it."""
    going = list(group.members.values())

    def end_waiting() -> None:
        group.pending.difference_update(abandoned)
        shard.timers.cancel(join_key(group.group_id))
        shard.timers.cancel(sync_key(group.group_id))
        for member in going:
            shard.timers.cancel(member.session_key)

    logger.info("group %r: generation %d has no members left", group.group_id, group.generation_id)
    if is_in_use(shard, group):
        return Outcome(records=[empty_record(group, shard.clock.now_ms())], replies=replies, then=end_waiting)
    end_waiting()
    group.replace_all([])
    group.leader_id, group.protocol_name = None, None
    group.generation_id += 1
    group.become(EMPTY)
    forget_if_bare(shard, group)
    return Outcome(replies=replies)


def forget_if_bare(shard: "GroupShard", group: ClassicGroup) -> None:
    """A group that is not in the log is there for its members alone, those included that are about to join."""
    if group.state is EMPTY and not group.is_logged and not group.pending:
        group.become(DEAD)
        del shard.groups[group.group_id]
