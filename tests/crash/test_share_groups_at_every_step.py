"""A share group is joined, altered, emptied and deleted, and the broker is stopped at every write and sync.

The group's record and the state of its partitions are in two logs, so a stop may leave one without the other. After the
restart every partition that the group calls initialized has state, what the client was told holds, and a new member
gets all partitions.
"""

import asyncio
import contextlib
from typing import Any

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError, StorageError
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.groups.share.share_membership import ShareHeartbeatRequest
from skep.coordination.groups.share_group_coordinator import ShareGroupCoordinator
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.share.share_records import decode_share_record
from skep.coordination.share.share_shard import ShareShard
from skep.coordination.share.share_state import SharePartitionKey
from tests.crash.life import HERE, Life, led_here
from tests.memory_files import Crashed, MemoryFiles, Survivors

GROUPS, STATES, ORDERS = "__consumer_offsets", "__share_group_state", "orders"
GROUP = "kitchen"
TOPICS = [led_here(GROUPS, 1), led_here(STATES, 1), led_here(ORDERS, 2)]
TOPIC_ID = TOPICS[2].topic_id
CONFIG = CurrentConfig(read_broker_config({"group.share.assignment.interval.ms": "0"}))


class ShareGroupLife(Life):
    """With the coordinators of groups and of share states."""

    turns = 400
    turn_ms = 5

    def __init__(self, files: MemoryFiles, config: TopicConfig) -> None:
        super().__init__(files, config, TOPICS)
        self.files = files
        rest = self.for_runtimes
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            GROUPS, lambda context: GroupShard(context, CONFIG, lambda: self.catalog.image), decode_group_record, *rest
        )
        self.states: CoordinatorRuntime[ShareShard] = CoordinatorRuntime(
            STATES, lambda context: ShareShard(context, CONFIG, lambda: self.catalog.image), decode_share_record, *rest
        )
        persister = ShareCoordinator(self.states, CONFIG, lambda index, before: None)
        self.share = ShareGroupCoordinator(self.groups, CONFIG, persister, self.supervisor)

    async def start(self) -> None:
        await self.replicas.load()
        self.groups.follow(TOPICS[0], HERE)
        self.states.follow(TOPICS[1], HERE)
        await self.until(lambda: not self.groups.is_loading and not self.states.is_loading)

    async def beat(self, member_id: str, epoch: int) -> Any:
        names = None if epoch else frozenset({ORDERS})
        return await self.settled(
            self.share.heartbeat(ShareHeartbeatRequest(GROUP, member_id, epoch, topic_names=names))
        )

    async def joined(self, member_id: str) -> None:
        """Joins, and goes on until all partitions are assigned."""
        response = await self.beat(member_id, 0)
        for _ in range(5):
            member = self.group().members[member_id]
            if member.assigned == {TOPIC_ID: frozenset({0, 1})}:
                return
            response = await self.beat(member_id, response["member_epoch"])
        if self.files.is_stopped:
            raise Crashed("in the task that initializes")
        raise AssertionError(f"{self.group().states} is not assigned")

    def group(self) -> ShareGroup:
        group = self.groups.shard_of(GROUP).groups[GROUP]
        assert isinstance(group, ShareGroup)
        return group

    def has_group(self) -> bool:
        return GROUP in self.groups.shard_of(GROUP).groups

    def starts(self) -> dict[int, int]:
        states = self.states.shard_of("any").states
        return {key.partition: state.start_offset for key, state in states.items()}

    def check_states(self) -> None:
        if self.has_group():
            for topic, numbers in self.group().states.initialized.items():
                for number in numbers:
                    assert SharePartitionKey(GROUP, topic, number) in self.states.shard_of("any").states


async def workload(files: MemoryFiles, config: TopicConfig, done: list[str]) -> None:
    life = ShareGroupLife(files, config)
    try:
        await life.start()
        await life.joined("a")
        done.append("joined")
        await life.beat("a", -1)
        done.append("left")
        results = await life.settled(life.share.alter_offsets(GROUP, [(ORDERS, 0, 7), (ORDERS, 1, 8)]))
        assert list(results.values()) == [None, None]
        done.append("altered")
        assert await life.settled(life.share.delete_offsets(GROUP, frozenset({TOPIC_ID}))) == {TOPIC_ID: None}
        done.append("offsets deleted")
        await life.joined("b")
        done.append("joined again")
        await life.beat("b", -1)
        done.append("left again")
        await life.settled(life.share.delete_group(GROUP))
        done.append("deleted")
    finally:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


async def check(files: MemoryFiles, config: TopicConfig, done: list[str]) -> None:
    life = ShareGroupLife(files, config)
    await life.start()
    life.check_states()
    last = done[-1] if done else "nothing"
    members = set(life.group().members) if life.has_group() else set()
    assert members <= {"nothing": {"a"}, "joined": {"a"}, "offsets deleted": {"b"}, "joined again": {"b"}}.get(
        last, set()
    )
    if last == "altered" and life.group().states.initialized:
        assert life.starts() == {0: 7, 1: 8}
    if last == "offsets deleted" and not members:
        assert life.starts() == {}
        assert not life.group().states.initialized
    if last == "deleted":
        assert not life.has_group()
        assert life.starts() == {}
    for member_id in members:
        await life.beat(member_id, -1)
    await life.joined("c")
    life.check_states()
    await life.beat("c", -1)
    await life.settled(life.share.delete_group(GROUP))
    assert not life.has_group()
    assert life.starts() == {}


def test_the_workload_itself_keeps_its_promises():
    files, done = MemoryFiles(), []
    asyncio.run(workload(files, TopicConfig(), done))
    assert done[-1] == "deleted"
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    asyncio.run(check(files, TopicConfig(), done))


@pytest.mark.parametrize(
    ("config", "survivors"),
    [
        (TopicConfig(), Survivors.ALL),
        (TopicConfig(flush_messages=1), Survivors.TORN),
        (TopicConfig(flush_messages=1), Survivors.SYNCED),
    ],
    ids=["killed", "torn-synced", "power-cut-synced"],
)
def test_stopped_at_every_write_and_sync(config: TopicConfig, survivors: Survivors):
    whole = MemoryFiles()
    asyncio.run(workload(whole, config, []))
    assert whole.steps > 20
    for step in range(1, whole.steps + 2):
        files, done = MemoryFiles(), []
        files.stop_at(step)
        # A death in a thread that syncs is to those who wait for it a failed sync.
        with contextlib.suppress(Crashed, StorageError, KafkaError):
            asyncio.run(workload(files, config, done))
        files.crash(names=survivors, content=survivors)
        try:
            asyncio.run(check(files, config, done))
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {whole.steps}, done {done}") from error
