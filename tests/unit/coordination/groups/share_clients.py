"""A cluster's topics, a group shard, a persister in memory, and members of share groups: for tests of share groups."""

import asyncio
import uuid
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch
from skep.base.loop.supervisor import Supervisor
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.groups.share.share_membership import ShareHeartbeatRequest
from skep.coordination.groups.share_group_coordinator import ShareGroupCoordinator
from skep.coordination.share.share_operations import NO_STATE
from skep.coordination.share.share_state import SharePartitionKey, ShareState
from tests.unit.coordination.groups.consumer_clients import GROUP, TO_JOIN_AGAIN, World

SESSION_MS = 45_000


class MemoryPersister:
    """A ``SharePersister``. ``failures`` are raised instead; ``calls`` are the names of what was asked."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.failures: dict[int, ErrorCode] = {}
        """By partition number."""
        self.fail_to_initialize: dict[int, ErrorCode] = {}
        self.calls: list[tuple[str, SharePartitionKey]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def _call(self, name: str, key: SharePartitionKey) -> None:
        self.calls.append((name, key))
        await self.gate.wait()
        failures = {**self.failures, **self.fail_to_initialize} if name == "initialize" else self.failures
        if key.partition in failures:
            raise KafkaError(failures[key.partition], "as told")

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self._call("initialize", key)
        before = self.states.get(key)
        if before is not None and before.state_epoch > state_epoch:
            raise KafkaError(ErrorCode.fenced_state_epoch)
        if before is None or before.state_epoch < state_epoch:
            self.states[key] = ShareState(state_epoch, -1, start_offset, 0)

    async def summary(self, key: SharePartitionKey) -> ShareState:
        await self._call("summary", key)
        return self.states.get(key, NO_STATE)

    async def delete(self, key: SharePartitionKey) -> None:
        await self._call("delete", key)
        self.states.pop(key, None)

    async def read(self, key: SharePartitionKey, leader_epoch: LeaderEpoch) -> ShareState:
        raise NotImplementedError

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        raise NotImplementedError


class DriverRuntime:
    """A runtime with one shard, whose records are committed at once."""

    def __init__(self, world: World) -> None:
        self._world = world

    def has(self, key: str) -> bool:
        return True

    def submit(self, key: str, operation: Any) -> Any:
        return self._world.driver.submit(operation)

    def shard_of(self, key: str) -> Any:
        return self._world.driver.shard

    def shards(self) -> list[Any]:
        return [self._world.driver.shard]


class ShareWorld(World):
    """``share`` is the coordinator in front of the shard; ``persister`` has the states."""

    def __init__(self, **topics: int) -> None:
        super().__init__(**topics)
        self.persister = MemoryPersister()
        self.supervisor = Supervisor()
        self.share = ShareGroupCoordinator(DriverRuntime(self), self.config, self.persister, self.supervisor)  # type: ignore[arg-type]

    def run(self, work: Any) -> Any:
        """Runs the request, and then whatever it has begun in the background."""

        async def run_all() -> Any:
            try:
                return await work
            finally:
                await asyncio.gather(*self.supervisor._tasks, return_exceptions=True)

        return asyncio.run(run_all())

    def beat(self, member_id: str, member_epoch: int, group_id: str = GROUP, **said: Any) -> dict[str, Any]:
        if "topics" in said:
            said["topic_names"] = frozenset(said.pop("topics").split())
        return dict(self.run(self.share.heartbeat(ShareHeartbeatRequest(group_id, member_id, member_epoch, **said))))

    def share_group(self, group_id: str = GROUP) -> ShareGroup:
        group = self.driver.shard.groups[group_id]
        assert isinstance(group, ShareGroup)
        return group

    def member(self, member_id: str, topics: str, group_id: str = GROUP) -> "ShareMemberClient":
        return ShareMemberClient(self, member_id, topics, group_id)

    def key(self, topic: str, partition: int, group_id: str = GROUP) -> SharePartitionKey:
        return SharePartitionKey(group_id, self.topic_id(topic), partition)

    def starts(self, topic: str, group_id: str = GROUP) -> dict[int, int]:
        """The start offsets in the persister."""
        return {
            key.partition: state.start_offset
            for key, state in self.persister.states.items()
            if (key.group_id, key.topic_id) == (group_id, self.topic_id(topic))
        }


class ShareMemberClient:
    """A share consumer: it remembers its epoch and its assignment, and joins again when it is fenced."""

    def __init__(self, world: ShareWorld, member_id: str, topics: str, group_id: str) -> None:
        self.world, self.member_id, self.topics, self.group_id = world, member_id, topics, group_id
        self.epoch = 0
        self.assigned: dict[uuid.UUID, frozenset[int]] = {}

    def beat(self, *, everything: bool = False) -> "ShareMemberClient":
        said = {"topics": self.topics} if everything or self.epoch == 0 else {}
        try:
            response = self.world.beat(self.member_id, self.epoch, self.group_id, **said)
        except KafkaError as error:
            if self.epoch == 0 or error.code not in TO_JOIN_AGAIN:
                raise
            self.epoch, self.assigned = 0, {}
            return self.beat()
        self.epoch = response["member_epoch"]
        if response["assignment"] is not None:
            entries = response["assignment"]["topic_partitions"]
            self.assigned = {entry["topic_id"]: frozenset(entry["partitions"]) for entry in entries}
        return self

    def leave(self) -> None:
        self.world.beat(self.member_id, -1, self.group_id)
        self.epoch, self.assigned = 0, {}

    def partitions(self, topic: str) -> set[int]:
        return set(self.assigned.get(self.world.topic_id(topic), ()))


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


NOT_LOGGED = (
    "memory",
    "seen_topics",
    "assigning",
    "assignable_at",
    "may_lack_state",
    "initializable_at",
    "new_topics",
    "assigned_states",
    "assigned_as",
)


def logged_state(group: ShareGroup) -> dict[str, Any]:
    """All of a group that a replay gives back."""
    return {name: value for name, value in vars(group).items() if name not in NOT_LOGGED}
