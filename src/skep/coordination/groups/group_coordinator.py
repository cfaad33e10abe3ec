"""The group coordinator: the requests about groups and offsets, as handlers submit them.

Each request becomes an operation on the shard that has the group. The operations are in the rooms beside this module:
``classic``, ``membership`` (consumer groups, KIP-848), ``offsets``. JoinGroup, SyncGroup, Heartbeat and LeaveGroup may
be for a classic group or for a consumer group with classic members; the functions below the class choose the operation.
Requests of share groups are in ``share_group_coordinator.py``.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Collection, Iterator, Sequence, Set
from typing import Any

from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_ids import check_group_id
from skep.coordination.groups.classic import classic_description, classic_join, classic_leave, classic_sync
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.classic_sync import SMALL_ASSIGNMENT, PreparedSync, SyncRequest
from skep.coordination.groups.classic.join_request import JoinRequest
from skep.coordination.groups.committed_offsets import Place
from skep.coordination.groups.consumer import consumer_description
from skep.coordination.groups.consumer.consumer_description import GroupSnapshot
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import JOINING_EPOCH
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.membership import consumer_heartbeat, mixed_group
from skep.coordination.groups.membership.consumer_heartbeat import HeartbeatRequest
from skep.coordination.groups.migration.upgrade import large_group
from skep.coordination.groups.offsets import deleted_topics, offset_operations
from skep.coordination.groups.offsets.offset_operations import AnyOffset, Codes, Committer, FetchedOffsets
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.shard import LATER, Outcome, ProducerStamp, Waiter

Response = dict[str, Any]

GROUPS_AT_ONCE = 100
"""Groups listed without a pause."""

WRITE_FAILURES = frozenset({ErrorCode.unknown_server_error, ErrorCode.coordinator_not_available})
"""The codes for records that could not be written: too large, or not appended or committed by the partition.

Kafka turns more codes of a failed append into these (appendGroupMetadataErrorToResponseError); here the runtime has
already done so.
"""


class GroupCoordinator:
    """Has no state but the shards of its runtime.

    A method raises KafkaError if the group id is not accepted, if the coordinator is not here or not loaded, or if the
    operation refuses. A response may be an awaitable: it is ready when everything written before it is committed.
    """

    def __init__(self, runtime: CoordinatorRuntime[GroupShard], config: CurrentConfig) -> None:
        self._runtime = runtime
        self._config = config

    def check_coordinator(self, group_id: str) -> None:
        """Raises KafkaError unless this broker coordinates the group and has loaded it."""
        self.check_id(group_id, may_be_empty=True)
        self._runtime.shard_of(group_id)

    def delete_offsets_of_topics(self, topics: frozenset[str]) -> None:
        """Schedules the deletion of the offsets of deleted topics, also in shards that are still loading."""
        if topics:
            for shard in self._runtime.shards():
                deleted_topics.delete_offsets_of(shard, topics)

    def end_transaction(
        self,
        partition: int,
        producer: ProducerStamp,
        coordinator_epoch: int,
        *,
        is_committed: bool,
        raises_epoch: bool = False,
    ) -> "asyncio.Future[None] | None":
        """Writes the transaction marker to a partition of ``__consumer_offsets``, and applies or drops its offsets.

        Returns a future of the marker's commit; None if it is committed already.
        """
        return self._runtime.end_transaction(
            partition, producer, coordinator_epoch, is_committed=is_committed, raises_epoch=raises_epoch
        )

    # Members of classic groups.

    async def join_group(self, request: JoinRequest) -> Response:
        """Returns JoinGroup's body when the rebalance completes."""
        self.check_id(request.group_id)
        if not self._runtime.has(request.group_id):
            await self._runtime.until_ready(request.group_id)
        response: Response = await self._runtime.submit_and_wait(
            request.group_id, lambda shard, waiter: join(shard, request, waiter)
        )
        return response

    async def sync_group(self, request: SyncRequest) -> Response:
        """Returns SyncGroup's body when the leader's assignment is there.

        An assignment that cannot be written is lost: the group rebalances, and the leader gets the error.
        """
        self.check_id(request.group_id)
        try:
            made = None
            if len(request.assignments) > SMALL_ASSIGNMENT:
                made = await self._runtime.prepare(request.group_id, lambda shard: prepare_sync(shard, request))
            response: Response = await self._runtime.submit_and_wait(
                request.group_id, lambda shard, waiter: sync(shard, request, waiter, made)
            )
            return response
        except KafkaError as error:
            if error.code in WRITE_FAILURES:
                await self._assignment_lost(request, error.code)
            raise

    async def _assignment_lost(self, request: SyncRequest, code: ErrorCode) -> None:
        response = None
        # If this cannot be committed either, the leader still gets the error of its assignment.
        with contextlib.suppress(KafkaError):
            response = self._runtime.submit(
                request.group_id,
                lambda shard: classic_sync.assignment_lost(shard, request.group_id, request.generation_id, code),
            )
            if isinstance(response, Awaitable):
                await response

    def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> Response | Awaitable[Response]:
        """Returns Heartbeat's body.

        While the coordinator loads, the response has no error, as in Kafka: loading starts a full session for every
        member.
        """
        self.check_id(group_id)
        try:
            response: Response | Awaitable[Response] = self._runtime.submit(
                group_id, lambda shard: heartbeat(shard, group_id, member_id, group_instance_id, generation_id)
            )
        except KafkaError as error:
            if error.code is ErrorCode.coordinator_load_in_progress:
                return {}
            raise
        return response

    def leave_group(self, group_id: str, leaving: Sequence[Leaving]) -> list[Response] | Awaitable[list[Response]]:
        """Returns an entry of LeaveGroup's body for each of ``leaving``."""
        self.check_id(group_id)
        response: list[Response] | Awaitable[list[Response]] = self._runtime.submit(
            group_id, lambda shard: leave(shard, group_id, leaving)
        )
        return response

    # Members of consumer groups.

    def consumer_group_heartbeat(self, request: HeartbeatRequest) -> Response | Awaitable[Response]:
        """Returns ConsumerGroupHeartbeat's body. A join to a large classic group prepares its upgrade in slices."""
        self.check_id(request.group_id, may_be_empty=True)
        group_id = request.group_id
        if request.member_epoch == JOINING_EPOCH and large_group(self._runtime.shard_of(group_id), group_id):
            return self._upgrade_and_join(request)
        response: Response | Awaitable[Response] = self._runtime.submit(
            group_id, lambda shard: consumer_heartbeat.heartbeat(shard, request)
        )
        return response

    async def _upgrade_and_join(self, request: HeartbeatRequest) -> Response:
        operation = await self._runtime.prepare(
            request.group_id, lambda shard: consumer_heartbeat.upgrade_and_join(shard, request)
        )
        response: Response | Awaitable[Response] = self._runtime.submit(request.group_id, operation)
        return await response if isinstance(response, Awaitable) else response

    # Groups.

    def describe_group(self, group_id: str, version: int) -> Response | Awaitable[Response]:
        """Returns an entry of DescribeGroups' body, without the authorized operations."""
        self.check_id(group_id, may_be_empty=True)
        response: Response | Awaitable[Response] = self._runtime.submit(
            group_id, lambda shard: classic_description.describe(shard, group_id, version)
        )
        return response

    def describe_consumer_group(self, group_id: str) -> GroupSnapshot | Awaitable[GroupSnapshot]:
        """Raises GROUP_ID_NOT_FOUND, also for a classic group."""
        self.check_id(group_id)
        response: GroupSnapshot | Awaitable[GroupSnapshot] = self._runtime.submit(
            group_id, lambda shard: consumer_description.describe(shard, group_id)
        )
        return response

    async def list_groups(self, states: Set[str], types: Set[str]) -> list[Response]:
        """Returns the groups of all shards in one of ``states`` and of one of ``types``, in lower case; empty: any.

        Raises COORDINATOR_LOAD_IN_PROGRESS while a shard loads: an incomplete list would look complete.
        """
        if self._runtime.is_loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "not all groups are loaded")
        groups = []
        for index in self._runtime.indexes():
            groups += await self._runtime.read(index, lambda shard: _listed(shard, states, types))
        return groups

    def delete_group(self, group_id: str) -> bool | Awaitable[bool]:
        """Deletes the group, or some of its offsets if it has very many. Returns whether to call this again."""
        self.check_id(group_id, may_be_empty=True)
        has_more: bool | Awaitable[bool] = self._runtime.submit(
            group_id, lambda shard: offset_operations.delete_group(shard, group_id)
        )
        return has_more

    # Offsets.

    def commit_offsets(
        self, group_id: str, committer: Committer, offsets: Sequence[AnyOffset], version: int
    ) -> Codes | Awaitable[Codes]:
        """Returns a code for each offset. At most ``OFFSETS_AT_ONCE`` offsets, so that the operation is short."""
        self.check_id(group_id, may_be_empty=True)
        codes: Codes | Awaitable[Codes] = self._runtime.submit(
            group_id, lambda shard: offset_operations.commit(shard, group_id, committer, offsets, version)
        )
        return codes

    def commit_transactional_offsets(
        self,
        group_id: str,
        committer: Committer,
        producer: ProducerStamp,
        offsets: Sequence[AnyOffset],
        version: int,
    ) -> Codes | Awaitable[Codes]:
        """``commit_offsets`` in the producer's transaction. The caller has verified that the group is a part of it."""
        self.check_id(group_id, may_be_empty=True)
        codes: Codes | Awaitable[Codes] = self._runtime.submit(
            group_id,
            lambda shard: offset_operations.commit_transactional(
                shard, group_id, committer, producer, offsets, version
            ),
        )
        return codes

    def fetch_offsets(
        self,
        group_id: str,
        member_id: str | None,
        member_epoch: int,
        places: Collection[Place] | None,
        *,
        require_stable: bool,
    ) -> FetchedOffsets | Awaitable[FetchedOffsets]:
        """Returns the offsets of ``places`` and perhaps more; of all partitions if it is None."""
        self.check_id(group_id, may_be_empty=True)
        fetched: FetchedOffsets | Awaitable[FetchedOffsets] = self._runtime.submit(
            group_id,
            lambda shard: offset_operations.fetch(
                shard, group_id, member_id, member_epoch, places, require_stable=require_stable
            ),
        )
        return fetched

    def check_offset_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> Awaitable[None] | None:
        """Raises what ``fetch_offsets`` would raise, and fetches nothing."""
        self.check_id(group_id, may_be_empty=True)

        def check(shard: GroupTable) -> Outcome:
            offset_operations.check_fetch(shard, group_id, member_id, member_epoch)
            return Outcome()

        response: Awaitable[None] | None = self._runtime.submit(group_id, check)
        return response

    def delete_offsets(self, group_id: str, places: Sequence[Place]) -> Codes | Awaitable[Codes]:
        """Returns a code for each partition. At most ``OFFSETS_AT_ONCE`` of them, so that the operation is short."""
        self.check_id(group_id, may_be_empty=True)
        codes: Codes | Awaitable[Codes] = self._runtime.submit(
            group_id, lambda shard: offset_operations.delete(shard, group_id, places)
        )
        return codes

    def check_id(self, group_id: str, *, may_be_empty: bool = False) -> None:
        check_group_id(self._config.value.coordinator, group_id, may_be_empty=may_be_empty)


# The requests of the classic protocol, for a classic group or a consumer group.


def join(table: GroupTable, request: JoinRequest, waiter: Waiter) -> Outcome:
    """The response is JoinGroup's body, or LATER."""
    group = table.groups.get(request.group_id)
    if isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"Group {request.group_id} is a share group.")
    if not isinstance(group, ConsumerGroup):
        return classic_join.join(table, request, waiter)
    classic_join.check_request(table, request)
    if group.is_empty:
        if request.member_id:
            # The id was handed out before the last member left. With this member the group would be a consumer group
            # with only classic members that nothing downgrades. As in Kafka, the client joins again without an id.
            raise KafkaError(ErrorCode.unknown_member_id, f"group {request.group_id!r} has no members")
        return _replace_by_classic(table, group, request, waiter)
    return mixed_group.join(table, group, request)


def _replace_by_classic(table: GroupTable, group: ConsumerGroup, request: JoinRequest, waiter: Waiter) -> Outcome:
    """Deletes a consumer group without members and creates a classic group, which has no records yet."""
    outcome = Outcome(LATER, group.tombstones())

    def then() -> None:
        try:
            joined = classic_join.join(table, request, waiter)
        except KafkaError as error:
            outcome.response = {"error_code": error.code, "generation_id": -1, "member_id": request.member_id}
            return
        assert not joined.records, "the first join of a classic group writes nothing"
        outcome.response, outcome.replies = joined.response, joined.replies

    outcome.then = then
    return outcome


def prepare_sync(table: GroupTable, request: SyncRequest) -> Work[PreparedSync | None]:
    """Prepares the record that ``sync`` writes for a large classic group."""
    if isinstance(table.groups.get(request.group_id), ConsumerGroup):
        return None
    return (yield from classic_sync.prepare_sync(table, request))


def sync(table: GroupTable, request: SyncRequest, waiter: Waiter, made: PreparedSync | None = None) -> Outcome:
    """The response is SyncGroup's body, or LATER."""
    group = table.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return mixed_group.sync(table, group, request)
    return classic_sync.sync(table, request, waiter, made)


def heartbeat(
    table: GroupTable, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
) -> Outcome:
    group = table.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return mixed_group.heartbeat(table, group, member_id, group_instance_id, generation_id)
    return classic_leave.heartbeat(table, group_id, member_id, group_instance_id, generation_id)


def leave(table: GroupTable, group_id: str, leaving: Sequence[Leaving]) -> Outcome:
    """The response is a list with the error code of each entry."""
    group = table.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return mixed_group.leave(table, group, leaving)
    return classic_leave.leave(table, group_id, leaving)


# ListGroups.


def _listed(table: GroupTable, states: Set[str], types: Set[str]) -> Work[list[Response]]:
    found = []
    for number, group in enumerate(_listings(table)):
        if (not states or group["group_state"].lower() in states) and (
            not types or group["group_type"].lower() in types
        ):
            found.append(group)
        if not number % GROUPS_AT_ONCE:
            yield
    return found


def _listings(table: GroupTable) -> Iterator[Response]:
    for group in list(table.groups.values()):
        yield {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state_name,
            "group_type": group.type_name,
        }
    for group_id in table.offsets.groups():
        if group_id not in table.groups:
            yield {"group_id": group_id, "protocol_type": "", "group_state": "Empty", "group_type": "classic"}
