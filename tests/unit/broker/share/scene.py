"""Share partitions on logs in memory, with a persister whose writes a test can hold back or fail."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.broker.share.share_partition import SharePartition
from skep.broker.share.share_partitions import SharePartitions
from skep.broker.share.share_sessions import ShareSessions
from skep.coordination.share.acknowledgement import Acknowledgement
from skep.coordination.share.acquisition import Order
from skep.coordination.share.share_state import SharePartitionKey, ShareState
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

ONE, TWO = BrokerId(1), BrokerId(2)
GROUP = "kitchen"
LOCK_MS = 30_000
MEBIBYTE = 1 << 20


class MemoryPersister:
    """A ``SharePersister`` that keeps every write. ``failures`` are raised by the next requests, one each."""

    def __init__(self) -> None:
        self.state = ShareState(0, 0, 0)
        self.writes: list[ShareState] = []
        self.failures: list[KafkaError] = []
        self.permits: asyncio.Semaphore | None = None
        """Writes wait for a permit if this is set."""
        self.is_here = False
        """Whether writes are committed at once."""
        self.reads = 0

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        raise NotImplementedError

    async def read(self, key: SharePartitionKey, leader_epoch: LeaderEpoch) -> ShareState:
        self.reads += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return self.state

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        if self.permits is not None:
            await self.permits.acquire()
        if self.failures:
            raise self.failures.pop(0)
        self.writes.append(state)

    def commits_at_once(self, key: SharePartitionKey) -> bool:
        return self.is_here

    def write_now(self, key: SharePartitionKey, state: ShareState) -> bool:
        if self.permits is not None:
            return False
        if self.failures:
            raise self.failures.pop(0)
        self.writes.append(state)
        return True

    async def summary(self, key: SharePartitionKey) -> ShareState:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return self.state

    async def delete(self, key: SharePartitionKey) -> None:
        raise NotImplementedError


class Lookups:
    """Stands for ``TimeLookups``: finds one offset for any time."""

    def __init__(self) -> None:
        self.found: int | None = None
        self.asked: list[int] = []

    async def find(self, log: Any, timestamp: int, up_to: Offset) -> Any:
        self.asked.append(timestamp)
        return None if self.found is None else SimpleNamespace(offset=self.found)


class ShareScene:
    """A broker that leads one partition. Provides what ``SharePartitions`` needs of a ``ReplicaManager``."""

    def __init__(self, topic: TopicConfig | None = None, **group_options: str) -> None:
        self.clock = ManualClock()
        self.topic_id: UUID = uuid4()
        self.persister = MemoryPersister()
        self.lookups = Lookups()
        self.supervisor = Supervisor()
        overrides: Mapping[str, str] = {name.replace("_", "."): value for name, value in group_options.items()}
        self.image = ClusterImage.of("c").with_group_config(GROUP, overrides)
        self.files = MemoryFiles()
        directory = LogDirectory(self.files, "/data", self.clock)
        directory.open()
        log = directory.log(TopicPartition("t", 0), topic or TopicConfig(), self.topic_id)
        self.led = Partition(log, self.topic_id, LeaderEpoch(0), self.clock, None, Offset(0))  # type: ignore[arg-type]
        self.lead(3)
        self.shares = SharePartitions(
            self,  # type: ignore[arg-type]
            self.persister,
            lambda: self.image,
            CurrentConfig(read_broker_config({})),
            self.clock,
            self.supervisor,
            self.lookups,  # type: ignore[arg-type]
            ThreadPoolExecutor(1),
            Slicer(self.clock),
        )
        self.limits = (100, 1000)
        self.sessions = ShareSessions(self.shares, lambda: self.limits)

    def lead(self, epoch: int, leader: BrokerId = ONE) -> None:
        record = PartitionRecord((ONE,), (ONE,), leader, LeaderEpoch(epoch))
        if leader == ONE:
            self.led.lead(ONE, record)
        else:
            self.led.follow(LeaderEpoch(epoch))
        if hasattr(self, "shares"):
            self.shares.role_changed(self.led, record)

    def name_of(self, topic_id: UUID) -> str:
        if topic_id != self.topic_id:
            raise KafkaError(ErrorCode.unknown_topic_id)
        return "t"

    def partition(self, topic: str, index: int) -> Partition:
        if index:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if not self.led.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return self.led

    # What happens.

    def append(self, count: int, *, producer: int = -1, sequence: int = 0, key: bytes | None = None) -> None:
        batch = build_batch(
            [(key, b"x" * 20, self.clock.now_ms(), ())] * count,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            is_transactional=producer >= 0,
        )
        self.led.append(batch, check_produced(batch, max_message_bytes=1 << 20))

    def find(self, group: str = GROUP) -> SharePartition:
        return self.shares.find(group, self.topic_id, 0)

    async def loaded(self) -> SharePartition:
        share = self.find()
        await settle()
        assert share.window is not None, share.error
        return share

    async def pass_ms(self, milliseconds: int) -> None:
        self.clock.advance_ms(milliseconds)
        self.shares.expire_due()
        await settle()


def deliver(share: SharePartition, member: str = "m1", most: int = 500, **options: Any) -> list[tuple[int, int, int]]:
    delivery = share.deliver(Order(member, most, 500), options.pop("max_bytes", MEBIBYTE), at_least_one=True)
    return [] if delivery is None else [(one.first, one.last, one.delivery_count) for one in delivery.acquired]


def acknowledge(
    share: SharePartition, first: int, last: int, *types: int, member: str = "m1"
) -> "asyncio.Future[KafkaError | None] | KafkaError | None":
    return share.acknowledge(member, [Acknowledgement(first, last, types)])


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(
    scenario: Callable[[ShareScene], Awaitable[None]], topic: TopicConfig | None = None, **group_options: str
) -> None:
    async def play() -> None:
        scene = ShareScene(topic, **group_options)
        try:
            await scenario(scene)
        finally:
            scene.shares.stop()
            await scene.supervisor.close()

    asyncio.run(play())
