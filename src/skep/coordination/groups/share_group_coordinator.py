"""The requests about share groups (KIP-932), as handlers submit them, and the life of the state of their partitions.

A group's state is changed by one task at a time, because the persister may be another broker: a deletion that arrived
after the initialization that follows it would leave a partition without state. ``state_operations.py`` has the steps.
"""

import asyncio
import contextlib
import functools
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.base.loop.supervisor import Supervisor
from skep.coordination.background import run_in_background
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_ids import check_group_id
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.share import share_description, share_membership, state_operations
from skep.coordination.groups.share.share_description import ShareGroupSnapshot
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.groups.share.share_membership import ShareHeartbeat, ShareHeartbeatRequest
from skep.coordination.groups.share.state_operations import PARTITIONS_AT_ONCE, NewState, StartOffsets
from skep.coordination.shard import Outcome
from skep.coordination.share.share_state import SharePartitionKey, SharePersister, ShareState

logger = logging.getLogger(__name__)

Response = dict[str, Any]

STATE_WAIT_S = 1.0
"""How long a heartbeat waits for the state of partitions. Mostly that is there at once, and the member gets its
assignment with its first heartbeat; otherwise with one of the next."""
CALLS_AT_ONCE = 50
"""Requests to the persister that one group has in flight."""


EPOCH_ATTEMPTS = 3
LARGEST_FIRST_EPOCH = 1 << 30
"""Half of all epochs are left for those that follow."""


class _Turn:
    """The right to change the state of one group. ``users`` have it, or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class ShareGroupCoordinator:
    """Owns the tasks that initialize and delete state. ``_turns`` has an entry for each group that has one.

    A method raises KafkaError if the group id is not accepted, if the coordinator is not here or not loaded, or if the
    operation refuses.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        config: CurrentConfig,
        persister: SharePersister,
        supervisor: Supervisor,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._persister = persister
        self._supervisor = supervisor
        self._turns: dict[str, _Turn] = {}
        self._initializing: dict[str, asyncio.Task[None]] = {}

    def has(self, group_id: str) -> bool:
        """Returns whether the group is a share group. Raises KafkaError if it is not coordinated here."""
        check_group_id(self._config.value.coordinator, group_id, may_be_empty=True)
        return isinstance(self._runtime.shard_of(group_id).groups.get(group_id), ShareGroup)

    async def heartbeat(self, request: ShareHeartbeatRequest) -> Mapping[str, Any]:
        """Returns ShareGroupHeartbeat's body."""
        check_group_id(self._config.value.coordinator, request.group_id, may_be_empty=True)
        group_id = request.group_id
        if not self._runtime.has(group_id):
            await self._runtime.until_ready(group_id)
        response: ShareHeartbeat = await self._submit(
            group_id, lambda shard: share_membership.heartbeat(shard, request)
        )
        if not response.is_state_due:
            return response.body
        task = self._initializing.get(group_id)
        if task is None:
            task = self._supervisor.spawn(f"initialize share group {group_id}", self._initialize(group_id))
            self._initializing[group_id] = task
            task.add_done_callback(lambda _: self._initializing.pop(group_id, None))
        done, _ = await asyncio.wait((task,), timeout=STATE_WAIT_S)
        if not done:
            return response.body
        return await self._assigned(request, response)

    async def _assigned(self, request: ShareHeartbeatRequest, first: ShareHeartbeat) -> Mapping[str, Any]:
        """Returns the body for a member whose group has more partitions than a moment ago."""
        again = request._replace(member_epoch=first.body["member_epoch"])
        try:
            response: ShareHeartbeat = await self._submit(
                request.group_id, lambda shard: share_membership.heartbeat(shard, again)
            )
        except KafkaError:
            return first.body  # the member is in the group, and its next heartbeat meets the same error
        if response.body["assignment"] is None:
            return {**response.body, "assignment": first.body["assignment"]}
        return response.body

    def describe(self, group_id: str) -> ShareGroupSnapshot | Awaitable[ShareGroupSnapshot]:
        """Raises GROUP_ID_NOT_FOUND, also for a group of another kind."""
        check_group_id(self._config.value.coordinator, group_id)
        response: ShareGroupSnapshot | Awaitable[ShareGroupSnapshot] = self._runtime.submit(
            group_id, lambda shard: share_description.describe(shard, group_id)
        )
        return response

    # Offsets.

    async def initialized_partitions(self, group_id: str) -> Mapping[uuid.UUID, frozenset[int]]:
        """Returns the partitions that the group has state of; none if it does not exist."""
        check_group_id(self._config.value.coordinator, group_id)

        def read(shard: GroupShard) -> Outcome:
            group = shard.groups.get(group_id)
            return Outcome(group.states.initialized if isinstance(group, ShareGroup) else {})

        partitions: Mapping[uuid.UUID, frozenset[int]] = await self._submit(group_id, read)
        return partitions

    async def summaries(self, keys: Sequence[SharePartitionKey]) -> dict[SharePartitionKey, ShareState | KafkaError]:
        """Returns the start offset and the epochs of each partition, or why they are not known."""
        return await self._each(keys, self._persister.summary)

    async def alter_offsets(self, group_id: str, offsets: StartOffsets) -> dict[SharePartitionKey, KafkaError | None]:
        """Sets the start offsets of a group without members. Returns the partitions that exist, with their errors."""
        check_group_id(self._config.value.coordinator, group_id)
        results: dict[SharePartitionKey, KafkaError | None] = {}
        async with self._alone(group_id):
            for start in range(0, len(offsets), PARTITIONS_AT_ONCE):
                some = offsets[start : start + PARTITIONS_AT_ONCE]
                plan: list[NewState] = await self._submit(
                    group_id, functools.partial(state_operations.begin_alteration, group_id=group_id, offsets=some)
                )
                results |= await self._carry_out(group_id, plan)
        return results

    async def delete_offsets(self, group_id: str, topics: Collection[uuid.UUID]) -> dict[uuid.UUID, KafkaError | None]:
        """Deletes the state of topics in a group without members. Returns the topics that had any, with their errors.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        check_group_id(self._config.value.coordinator, group_id)
        async with self._alone(group_id):
            return await self._delete_state(group_id, topics)

    async def delete_group(self, group_id: str) -> bool:
        """Deletes the group and its state. Returns False: nothing is left to do."""
        async with self._alone(group_id):
            is_deleted = False
            while not is_deleted:
                codes = await self._delete_state(group_id, None)
                for error in codes.values():
                    if error is not None:
                        raise error
                is_deleted = await self._submit(group_id, lambda shard: state_operations.delete_group(shard, group_id))
        return False

    # State.

    def delete_state_of_topics(self, topics: frozenset[uuid.UUID]) -> None:
        """Deletes the state of deleted topics, also in shards that are still loading."""
        for shard in self._runtime.shards() if topics else ():
            key = ("delete share state", topics)
            run_in_background(shard.timers, key, self._forget_all(shard, topics), lambda shard: Outcome())

    def _forget_all(self, shard: GroupShard, topics: frozenset[uuid.UUID]) -> Work[Outcome]:
        groups = yield from state_operations.groups_with_state_of(shard, topics)
        if groups:
            self._supervisor.spawn("delete share state of deleted topics", self._forget(groups, topics))
        return Outcome()

    async def _forget(self, groups: Sequence[str], topics: frozenset[uuid.UUID]) -> None:
        """Ends when the state is deleted, or the groups have moved: their next coordinator begins again."""
        while groups := [group_id for group_id in groups if not await self._is_forgotten(group_id, topics)]:
            logger.warning("the state of deleted topics is not deleted yet in %d share groups", len(groups))
            await asyncio.sleep(self._config.value.share.initialize_retry_interval_ms / 1000)

    async def _is_forgotten(self, group_id: str, topics: frozenset[uuid.UUID]) -> bool:
        """Deletes the state of the topics in one group. Returns whether there is nothing left to do here."""
        try:
            async with self._alone(group_id):
                keys = await self._submit(
                    group_id, lambda shard: Outcome(state_operations.state_of(shard, group_id, topics))
                )
                results: dict[SharePartitionKey, KafkaError | None] = await self._each(keys, self._persister.delete)
                for error in results.values():
                    if error is not None and error.code is not ErrorCode.unknown_topic_or_partition:
                        return False
                await self._submit(group_id, lambda shard: state_operations.forget(shard, group_id, topics))
                return True
        except KafkaError as error:
            return error.code is ErrorCode.not_coordinator

    async def _initialize(self, group_id: str) -> None:
        """Initializes the state of the partitions that have none. What fails is tried again by a later heartbeat."""
        with contextlib.suppress(KafkaError):
            async with self._alone(group_id):
                while plan := await self._submit(
                    group_id, lambda shard: state_operations.begin_initialization(shard, group_id)
                ):
                    errors = list(filter(None, (await self._carry_out(group_id, plan)).values()))
                    if errors:
                        logger.warning(
                            "share group %s: the state of %d partitions is not initialized yet: %s",
                            group_id,
                            len(errors),
                            errors[0],
                        )
                        await self._submit(
                            group_id, lambda shard: state_operations.initialization_failed(shard, group_id)
                        )
                        return

    async def _carry_out(self, group_id: str, plan: Sequence[NewState]) -> dict[SharePartitionKey, KafkaError | None]:
        """Initializes the state and records what exists now."""
        by_key = {new.key: new for new in plan}
        results = await self._each(list(by_key), lambda key: self._initialize_state(key, by_key[key].start_offset))
        done = [key for key, error in results.items() if error is None]
        if done:
            await self._submit(group_id, lambda shard: state_operations.initialized(shard, group_id, done))
        return results

    async def _initialize_state(self, key: SharePartitionKey, start_offset: int) -> None:
        """Replaces the state by an empty one, in a state epoch that no leader of the partition has seen.

        The epochs of a group begin again when it was deleted and created again, so they cannot be the state's: a leader
        that still has the deleted state would write its deliveries into the new one. A first state epoch is drawn at
        random, the next ones follow it. A leader may begin one too, so a number may be taken meanwhile.
        """
        for attempts_left in reversed(range(EPOCH_ATTEMPTS)):
            before = (await self._persister.summary(key)).state_epoch
            epoch = before + 1 if before else 1 + secrets.randbelow(LARGEST_FIRST_EPOCH)
            try:
                await self._persister.initialize(key, epoch, start_offset)
                return
            except KafkaError as error:
                if error.code is not ErrorCode.fenced_state_epoch or not attempts_left:
                    raise

    async def _delete_state(
        self, group_id: str, topics: Collection[uuid.UUID] | None
    ) -> dict[uuid.UUID, KafkaError | None]:
        keys: Sequence[SharePartitionKey] = await self._submit(
            group_id, lambda shard: state_operations.begin_deletion(shard, group_id, topics)
        )
        codes: dict[uuid.UUID, KafkaError | None] = {}
        for key, error in (await self._each(keys, self._persister.delete)).items():
            codes[key.topic_id] = codes.get(key.topic_id) or error
        gone = [topic for topic, error in codes.items() if error is None]
        await self._submit(group_id, lambda shard: state_operations.deleted(shard, group_id, gone))
        return codes

    async def _each(
        self, keys: Sequence[SharePartitionKey], call: Callable[[SharePartitionKey], Awaitable[Any]]
    ) -> dict[SharePartitionKey, Any]:
        """Returns the result of each call, or its KafkaError."""
        results: dict[SharePartitionKey, Any] = {}
        for start in range(0, len(keys), CALLS_AT_ONCE):
            some = keys[start : start + CALLS_AT_ONCE]
            for key, result in zip(some, await asyncio.gather(*map(_caught(call), some)), strict=True):
                results[key] = result
        return results

    @contextlib.asynccontextmanager
    async def _alone(self, group_id: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(group_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[group_id]

    async def _submit(self, group_id: str, operation: Callable[[GroupShard], Outcome]) -> Any:
        """Returns the response when everything that was written before it is committed."""
        response = self._runtime.submit(group_id, operation)
        return await response if isinstance(response, Awaitable) else response


def _caught(call: Callable[[SharePartitionKey], Awaitable[Any]]) -> Callable[[SharePartitionKey], Awaitable[Any]]:
    async def caught(key: SharePartitionKey) -> Any:
        try:
            return await call(key)
        except KafkaError as error:
            return error

    return caught
