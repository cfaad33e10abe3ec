"""Share coordinators that die, stop or freeze while the leader of a partition on another broker writes to them.

The broker with the persister runs in the process of the test, as a member of the cluster.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from skep.app import Broker
from skep.base.config.coordinator_config import SHARE_GROUP_STATE
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch
from skep.coordination.partitioner import partition_for
from skep.coordination.share.share_state import (
    DeliveryState,
    SharePartitionKey,
    SharePersister,
    ShareState,
    StateBatch,
)
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import TopicRecord
from skep.testing import EmbeddedCluster
from tests.cluster.coordinators import assert_no_bug_was_logged
from tests.cluster.driving import create_only

pytestmark = pytest.mark.xdist_group(__name__)

STATE_PARTITIONS = 3
OPTIONS = {
    "share.coordinator.state.topic.num.partitions": str(STATE_PARTITIONS),
    "share.coordinator.snapshot.update.records.per.snapshot": "7",
    "share.coordinator.state.topic.prune.interval.ms": "200",
    "share.coordinator.cold.partition.snapshot.interval.ms": "300",
    "share.coordinator.write.timeout.ms": "1000",
    "offsets.topic.num.partitions": "1",
}
TOPIC = "orders"
GROUPS = [f"kitchen {number}" for number in range(6)]
WINDOW = 20
"""Offsets that a writer keeps before it moves the start of its share partition."""
GENERATION = 15
"""Offsets after which a writer replaces the whole state."""
MEMBER = 99
PATIENCE_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, config=OPTIONS) as started:
        create_only(started, TOPIC, [[1, 2, 3]])
        yield started


class Member:
    """The broker in this process."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def persister(self) -> SharePersister:
        return self._broker._coordinators.share_persister

    @property
    def image(self) -> ClusterImage:
        return self._broker._catalog.image

    @property
    def state_topic(self) -> TopicRecord:
        return self.image.topics[SHARE_GROUP_STATE]

    def key(self, group: str) -> SharePartitionKey:
        return SharePartitionKey(group, self.image.topics[TOPIC].topic_id, 0)

    def coordinator_of(self, group: str) -> int:
        index = partition_for(self.key(group).coordinator_key, STATE_PARTITIONS)
        return self.state_topic.partitions[index].leader

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        try:
            await asyncio.wait_for(wait(), PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}") from None

    async def until_in_sync(self) -> None:
        await self.until(
            lambda: all(len(partition.isr) == len(partition.replicas) for partition in self.state_topic.partitions),
            "all replicas are in sync",
        )


@contextlib.asynccontextmanager
async def member_of(cluster: EmbeddedCluster, data_dir: Path) -> AsyncIterator[Member]:
    broker = Broker(
        {
            **OPTIONS,
            "default.replication.factor": "3",
            "listeners": "127.0.0.1:0",
            "log.dirs": str(data_dir),
            "node.id": str(MEMBER),
            "skep.metadata": f"sqlite:{cluster.data_dir / 'metadata.sqlite'}",
        }
    )
    await broker.start()
    try:
        member = Member(broker)
        await member.until(lambda: TOPIC in member.image.topics and len(member.image.brokers) == 4, "it knows all")
        yield member
    finally:
        await broker.stop()


def batch_of(offset: int) -> StateBatch:
    """Accepted, or waiting for its next delivery."""
    if offset % 2:
        return StateBatch(offset, offset, DeliveryState.AVAILABLE, 1 + offset % 3, 1, 1_700_000_000_000 + offset)
    return StateBatch(offset, offset, DeliveryState.ACKNOWLEDGED, 1 + offset % 3)


class Writer:
    """The leader of a share partition, which finishes one record after the other, or lets it wait.

    ``written`` is the number of offsets that are acknowledged. What it is told is checked at the end.
    """

    def __init__(self, member: Member, group: str) -> None:
        self._persister, self.key, self.group = member.persister, member.key(group), group
        self.written = 0
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            offset = self.written
            start = max(0, offset - WINDOW)
            is_replacement = offset % GENERATION == 0
            batches = [batch_of(one) for one in range(start if is_replacement else offset, offset + 1)]
            state = ShareState(0, 1, start, 0, batches, 1 + offset // GENERATION)
            try:
                await self._persister.write(self.key, state)
            except KafkaError as error:
                assert error.code not in (ErrorCode.fenced_leader_epoch, ErrorCode.fenced_state_epoch), error
                continue
            self.written += 1

    async def check(self) -> None:
        """A new leader reads all that was acknowledged, and fences this one."""
        state = await self._persister.read(self.key, LeaderEpoch(2))
        last = self.written - 1
        assert max(0, last - WINDOW) <= state.start_offset <= max(0, last + 1 - WINDOW)
        known = {offset: batch[2:] for batch in state.batches for offset in range(batch.first, batch.last + 1)}
        for offset in range(state.start_offset, self.written):
            assert known[offset] == batch_of(offset)[2:], f"offset {offset} of {self.written} is {known.get(offset)}"
        assert set(known) <= set(range(state.start_offset, self.written + 1))
        with pytest.raises(KafkaError) as fenced:
            await self._persister.write(self.key, ShareState(0, 1, 0))
        assert fenced.value.code is ErrorCode.fenced_leader_epoch


def test_nothing_acknowledged_is_lost_while_the_coordinators_move(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with member_of(cluster, tmp_path) as member:
            for group in GROUPS:
                await member.persister.initialize(member.key(group), 0, 0)
                await member.persister.read(member.key(group), LeaderEpoch(1))
            writers = [Writer(member, group) for group in GROUPS]
            running = [asyncio.ensure_future(writer.run()) for writer in writers]
            for end in ("kill", "pause", "stop"):
                await _all_write_on(member, writers)
                lost = next(leader for group in GROUPS if (leader := member.coordinator_of(group)) != MEMBER)
                moved = [group for group in GROUPS if member.coordinator_of(group) == lost]
                await asyncio.to_thread(getattr(cluster, end), lost)
                await member.until(
                    lambda: all(member.coordinator_of(group) not in (lost, -1) for group in moved),  # noqa: B023
                    "other coordinators are elected",
                )
                await _all_write_on(member, writers)
                await asyncio.to_thread(cluster.resume if end == "pause" else cluster.restart, lost)
                await member.until_in_sync()
            for writer in writers:
                writer.is_stopping = True
            await asyncio.gather(*running)
            for writer in writers:
                await writer.check()

    asyncio.run(scenario())
    assert_no_bug_was_logged(cluster)


async def _all_write_on(member: Member, writers: list[Writer]) -> None:
    goals = {writer: writer.written + 25 for writer in writers}
    await member.until(
        lambda: all(writer.written >= goal for writer, goal in goals.items()), "all share partitions are written to"
    )
