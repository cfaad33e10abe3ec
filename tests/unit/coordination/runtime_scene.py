"""A runtime over real logs in memory, with a coordinator that keeps texts by key."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.shard import CoordinatorRecord, Outcome
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord, random_id
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

TOPIC = "__numbers"
HERE, ELSEWHERE = BrokerId(1), BrokerId(2)


class Text(NamedTuple):
    text: str

    def encode(self) -> bytes:
        return self.text.encode()


class Numbers:
    """A coordinator that remembers a text per key, and lets people wait for one."""

    def __init__(self, context: Any) -> None:
        self.timers = context.timers
        self.texts: dict[str, str] = {}
        self.pending: dict[int, dict[str, str]] = {}
        self.waiting: list[Any] = []
        self.was_loaded = False

    @property
    def no_change(self):
        return CoordinatorRecord(Text(""), None)

    def replay(self, offset, key, value, producer):
        texts = self.texts if producer is None else self.pending.setdefault(producer.producer_id, {})
        if value == Text("damned"):
            raise RuntimeError("a bug in replay")
        if value is None:
            texts.pop(key.text, None)
        else:
            texts[key.text] = value.text

    def replay_end_of_transaction(self, producer, *, is_committed):
        texts = self.pending.pop(producer.producer_id, {})
        if is_committed:
            self.texts.update(texts)

    def loaded(self):
        self.was_loaded = True
        yield
        return Outcome()

    def unloaded(self):
        return Outcome(replies=[(waiter, KafkaError(ErrorCode.not_coordinator)) for waiter in self.waiting])


def decode(key: bytes, value: bytes | None) -> Any:
    if value == b"damaged":
        raise ValueError("damaged")
    return Text(key.decode()), None if value is None else Text(value.decode())


def put(key: str, text: str | None, **more: Any) -> Callable[[Numbers], Outcome]:
    record = CoordinatorRecord(Text(key), None if text is None else Text(text))
    return lambda shard: Outcome("put", [record], **more)


def get(key: str) -> Callable[[Numbers], Outcome]:
    return lambda shard: Outcome(shard.texts.get(key))


class Catalog:
    def __init__(self, topic: TopicRecord) -> None:
        self.image = ClusterImage.of("test", topics=[topic])
        self.pending_deletions: dict[Any, str] = {}


class SlowThreads(ThreadPoolExecutor):
    """Threads that begin nothing while the gate is closed."""

    def __init__(self) -> None:
        super().__init__(2)
        self.gate = threading.Event()
        self.gate.set()

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        def behind_the_gate() -> Any:
            assert self.gate.wait(60)
            return work(*args, **kwargs)

        return super().submit(behind_the_gate)


class Scene:
    """A runtime of three partitions, of which the first two are led here."""

    def __init__(self, threads: SlowThreads, **config: Any) -> None:
        self.threads = threads
        self.files, self.clock, self.supervisor = MemoryFiles(), ManualClock(), Supervisor()
        self.slicer = Slicer(self.clock)
        self.directory = LogDirectory(self.files, "/data", self.clock)
        self.directory.open()
        leaders = [HERE, HERE, ELSEWHERE]
        partitions = tuple(PartitionRecord.new([leader]) for leader in leaders)
        self.topic = TopicRecord(TOPIC, random_id(), partitions)
        self.catalog = Catalog(self.topic)
        self.replicas = ReplicaManager(
            self.directory, self.catalog, TopicConfig(**config), self.clock, threads, self.supervisor
        )
        self.runtime = self.new_runtime()
        self.replicas.on_role_change = lambda partition, record: self.runtime.role_taken(
            partition.topic_partition.partition
        )
        self.runtime.follow(self.topic, HERE)

    def new_runtime(self) -> CoordinatorRuntime[Numbers]:
        return CoordinatorRuntime(
            TOPIC, Numbers, decode, self.replicas, self.clock, self.threads, self.supervisor, self.slicer
        )

    async def again(self) -> CoordinatorRuntime[Numbers]:
        """Another runtime over the same logs, as after a restart, when it has loaded."""
        runtime = self.new_runtime()
        runtime.follow(self.topic, HERE)
        while runtime.is_loading:
            await asyncio.sleep(0.001)
        return runtime


def run(scenario: Callable[[Scene], Awaitable[None]], **config: Any) -> None:
    async def whole() -> None:
        with SlowThreads() as threads:
            scene = Scene(threads, **config)
            try:
                await scenario(scene)
            finally:
                threads.gate.set()
                for partition in scene.replicas.open_partitions():
                    await partition.synced()
                await scene.supervisor.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def refusal(work: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        work()
    return refused.value.code
