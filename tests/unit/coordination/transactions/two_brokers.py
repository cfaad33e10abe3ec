"""Two brokers in one event loop, without sockets: each with its logs, coordinators and handlers, over one image.

Broker 1 coordinates transactions, broker 2 groups; each leads one partition of ``orders``. What one asks of the other
goes through the bytes of the protocol and the handlers; the responses can be held back.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from kio.serial import entity_reader

from skep.base.clock import SystemClock
from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError
from skep.base.ids import BrokerId, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.broker.dispatch import HANDLERS
from skep.broker.request import Request
from skep.client.errors import Unreachable
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.group_coordinator import GroupCoordinator
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.partition_leaders import PartitionLeaders
from skep.coordination.transaction_records import decode_transaction_record
from skep.coordination.transactions.markers import MarkerWriter
from skep.coordination.transactions.remote_markers import RemoteMarkers
from skep.coordination.transactions.transaction_coordinator import TransactionCoordinator
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.coordination.transactions.verifier import Verifier
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord, random_id
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from skep.wire.apis import Api
from skep.wire.codec import decode_request, encode_response, request_class, response_class
from skep.wire.headers import response_header
from tests.kio_entities import written
from tests.memory_files import MemoryFiles

ONE, TWO = BrokerId(1), BrokerId(2)
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
ON_ONE, ON_TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)
OFFSETS = TopicPartition(GROUPS, 0)


class Catalog:
    def __init__(self) -> None:
        topics = [
            TopicRecord(name, random_id(), tuple(PartitionRecord.new([leader]) for leader in leaders))
            for name, leaders in ((GROUPS, [TWO]), (TRANSACTIONS, [ONE]), ("orders", [ONE, TWO]))
        ]
        brokers = [BrokerRecord(one, f"host-{one}", 9092) for one in (ONE, TWO)]
        self.image = ClusterImage.of("test", brokers, topics)
        self.pending_deletions: dict[Any, str] = {}


class ProducerIds:
    def __init__(self) -> None:
        self._numbers = itertools.count(1000)

    async def next_id(self) -> int:
        return next(self._numbers)


class Wire:
    """Stands for ``Peers``: what is asked, how often nobody answers, with ``holds`` responses that a test lets go."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self.holds = False
        self.held: list[asyncio.Event] = []
        self.asked: list[str] = []
        self.failures = 0

    async def ask(self, broker: BrokerRecord, api: Api, body: Any, *, version: int | None = None) -> Any:
        self.asked.append(api.name)
        if self.failures:
            self.failures -= 1
            raise Unreachable(f"nobody at {broker.host}")
        response = await self._scene.nodes[broker.id].ask(api, api.newest if version is None else version, **body)
        if self.holds:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return response

    def let_go(self) -> None:
        self.holds = False
        for response in self.held:
            response.set()


class Node:
    def __init__(self, scene: "Scene", node_id: BrokerId) -> None:
        self.wire = Wire(scene)
        catalog, clock, executor, supervisor = scene.catalog, SystemClock(), scene.executor, scene.supervisor
        self._config = config = BrokerConfig()
        current = CurrentConfig(config)
        directory = LogDirectory(MemoryFiles(), "/data", clock)
        directory.open()
        self.replicas = ReplicaManager(directory, catalog, TopicConfig(), clock, executor, supervisor, node_id)  # type: ignore[arg-type]
        slicer = Slicer(clock)
        rest = (self.replicas, clock, executor, supervisor, slicer)
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            GROUPS,
            lambda context: GroupShard(context, current, lambda: catalog.image),
            decode_group_record,
            *rest,
        )
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTIONS,
            lambda context: TransactionShard(context, current, markers),
            decode_transaction_record,
            *rest,
        )
        leaders = PartitionLeaders(node_id, lambda: catalog.image)
        verifier = Verifier(self.runtime, current, leaders, self.wire)
        remote = RemoteMarkers(self.wire, supervisor)
        markers = MarkerWriter(TRANSACTIONS, self.replicas, self.groups, verifier.guards, leaders, remote)
        self.transactions = TransactionCoordinator(self.runtime, self.groups, current, verifier)
        self.groups.follow(catalog.image.topics[GROUPS], node_id)
        self.runtime.follow(catalog.image.topics[TRANSACTIONS], node_id)
        self.services: Any = SimpleNamespace(
            config=config,
            catalog=catalog,
            slicer=slicer,
            replicas=self.replicas,
            clock=clock,
            groups=GroupCoordinator(self.groups, current),
            transactions=self.transactions,
            producer_ids=ProducerIds(),
        )

    def handle(self, api: Api, version: int, **body: Any) -> "asyncio.Future[Any]":
        """The request is taken now; the response, as its sender reads it, comes."""
        decoded = decode_request(api.key, version, memoryview(written(request_class(api.key, version), body)), 0)
        request = Request(api, version, 7, "test", "192.0.2.1", decoded)
        try:
            response = HANDLERS[api.key].handle(self.services, request)
        except KafkaError as error:
            response = HANDLERS[api.key].refuse(request, error.code)
        return asyncio.ensure_future(_read(api, request, response))

    async def ask(self, api: Api, version: int, **body: Any) -> Any:
        return await self.handle(api, version, **body)

    def batches(self, partition: TopicPartition) -> list[str]:
        """What lies in the log: ``0`` for a batch that begins with sequence 0, ``!`` for a marker."""
        log = self.replicas.partition(*partition).log
        found, offset = [], log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.read(offset, 1, up_to=log.log_end_offset, at_least_one=True)
            assert piece.file is not None
            header = read_header(piece.file.read(piece.position, piece.size))
            found.append("!" if header.is_control else str(header.base_sequence))
            offset = header.next_offset
        return found


async def _read(api: Api, request: Request, response: Any) -> Any:
    try:
        if isinstance(response, Awaitable):
            response = await response
    except KafkaError as error:
        response = HANDLERS[api.key].refuse(request, error.code)
    encoded = response[0] if isinstance(response, tuple) else encode_response(api.key, request.version, 7, response)
    header = response_header(api.key, request.version, 7)
    return entity_reader(response_class(api.key, request.version))(memoryview(encoded).toreadonly(), len(header))[0]


class Scene:
    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.executor, self.supervisor, self.catalog = executor, Supervisor(), Catalog()
        self.nodes: dict[BrokerId, Node] = {}
        for node_id in (ONE, TWO):
            self.nodes[node_id] = Node(self, node_id)
        self.one, self.two = self.nodes[ONE], self.nodes[TWO]


def run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        with ThreadPoolExecutor(1) as executor:
            scene = Scene(executor)
            try:
                await scenario(scene)
            finally:
                for node in scene.nodes.values():
                    node.runtime.stop()
                    node.groups.stop()
                await scene.supervisor.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def batch(producer: Any, sequence: int, count: int = 1) -> bytes:
    return build_batch(
        [NewRecord(b"k", b"v", 1_700_000_000_000)] * count,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
