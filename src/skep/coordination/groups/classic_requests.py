"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup to a group of either kind (KIP-848)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.groups.classic import classic_join as classic_joining
from skep.coordination.groups.classic import classic_leave as classic_leaving
from skep.coordination.groups.classic import classic_sync as classic_syncing
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.classic_sync import PreparedSync, SyncRequest
from skep.coordination.groups.classic.join_request import JoinRequest
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.membership import mixed_group as migration_members
from skep.coordination.shard import LATER, Outcome, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard


def join(shard: "GroupShard", request: JoinRequest, waiter: Waiter) -> Outcome:
    """The response is JoinGroup's body, or LATER."""
    group = shard.groups.get(request.group_id)
    if not isinstance(group, ConsumerGroup):
        return classic_joining.join(shard, request, waiter)
    classic_joining.check_request(shard, request)
    if group.is_empty:
        if request.member_id:
            # An id given out before the last member left. Admitted here, the group would stay a consumer group with
            # classic members only, which nobody downgrades. As in Kafka, the client joins again without an id.
            raise KafkaError(ErrorCode.unknown_member_id, f"{request.group_id!r} has no members")
        return _begin_classic(group, request, waiter, shard)
    return migration_members.join(shard, group, request)


def _begin_classic(group: ConsumerGroup, request: JoinRequest, waiter: Waiter, shard: "GroupShard") -> Outcome:
    """A consumer group without members is deleted, and then a classic one begins, of which nothing is written yet."""
    outcome = Outcome(LATER, group.tombstones())

    def then() -> None:
        try:
            joined = classic_joining.join(shard, request, waiter)
        except KafkaError as error:
            outcome.response = {"error_code": error.code, "generation_id": -1, "member_id": request.member_id}
            return
        assert not joined.records, "the first of a group has nothing to write"
        outcome.response, outcome.replies = joined.response, joined.replies

    outcome.then = then
    return outcome


def prepare_sync(shard: "GroupShard", request: SyncRequest) -> Work[PreparedSync | None]:
    """What ``sync`` takes for a large group, if it is a classic one."""
    if isinstance(shard.groups.get(request.group_id), ConsumerGroup):
        return None
    return (yield from classic_syncing.prepare_sync(shard, request))


def sync(shard: "GroupShard", request: SyncRequest, waiter: Waiter, made: PreparedSync | None = None) -> Outcome:
    """The response is SyncGroup's body, or LATER."""
    group = shard.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return migration_members.sync(shard, group, request)
    return classic_syncing.sync(shard, request, waiter, made)


def heartbeat(
    shard: "GroupShard", group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
) -> Outcome:
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return migration_members.heartbeat(shard, group, member_id, group_instance_id, generation_id)
    return classic_leaving.heartbeat(shard, group_id, member_id, group_instance_id, generation_id)


def leave(shard: "GroupShard", group_id: str, leaving: Sequence[Leaving]) -> Outcome:
    """The response is a list with each entry and its code."""
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return migration_members.leave(shard, group, leaving)
    return classic_leaving.leave(shard, group_id, leaving)
