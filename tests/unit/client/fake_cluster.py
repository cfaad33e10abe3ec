"""A cluster in memory for readers: a log of one partition, and faults that are met one after the other."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import Unreachable
from skep.records.batch import read_header
from skep.wire.apis import FETCH, Api
from skep.wire.codec import Body, decode_request
from skep.wire.fetch.fetch_response import FetchedPartition, FetchedTopic, encode_fetch_response
from tests.manual_clock import ManualClock

TOPIC_ID = UUID(int=77)
HERE = Node(1, "b1", 9092)

Fault = ErrorCode | type[Unreachable] | None


@dataclass
class FakeLog:
    batches: Sequence[bytes]
    end: int
    last_stable_offset: int | None = None
    aborted: Sequence[tuple[int, int]] = ()

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds the offset on, one at least, as a broker does."""
        found = b""
        limit = self.end if self.last_stable_offset is None else self.last_stable_offset
        for batch in self.batches:
            header = read_header(batch)
            if header.last_offset < offset or header.base_offset >= limit:
                continue
            if found and len(found) + len(batch) > max_bytes:
                break
            found += batch
        return found


class FakeFrames:
    def recycle(self, frame: memoryview) -> None:
        pass


@dataclass
class FakeConnection:
    """Responds with what the log has, unless a fault is due; ``None`` among the faults is a response without one."""

    log: FakeLog
    faults: deque[Fault]
    asked: list[int]
    address: str = "b1:9092"
    is_broken: bool = False
    timeout_s: float | None = None
    waiting: deque[Any] = field(default_factory=deque)
    frames: FakeFrames = field(default_factory=FakeFrames)

    @property
    def in_flight(self) -> int:
        return len(self.waiting)

    def set_timeout(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def version_of(self, api: Api) -> int:
        return api.newest

    def send(self, api: Api, body: bytes, *, version: int) -> int:
        if self.is_broken:
            raise Unreachable("broken")
        [topic] = decode_request(api.key, version, memoryview(body), 0).topics
        [wanted] = topic.partitions
        self.asked.append(wanted.fetch_offset)
        self.waiting.append(wanted)
        return version

    def receive_frame(self) -> memoryview:
        wanted = self.waiting.popleft()
        fault = self.faults.popleft() if self.faults else None
        if fault is Unreachable:
            self.is_broken = True
            raise Unreachable("the connection was closed")
        if isinstance(fault, ErrorCode):
            piece = FetchedPartition(0, fault)
        else:
            records = self.log.read(wanted.fetch_offset, wanted.partition_max_bytes)
            stable = self.log.end if self.log.last_stable_offset is None else self.log.last_stable_offset
            piece = FetchedPartition(0, 0, self.log.end, stable, 0, records, self.log.aborted)
        parts = encode_fetch_response(FETCH.newest, 1, [FetchedTopic("t", TOPIC_ID, [piece])])
        return memoryview(bytearray(b"".join(parts)))  # type: ignore[arg-type]


class FakeCluster(ClusterClient):
    """Time passes only by sleeping and by fetching in vain."""

    def __init__(self, log: FakeLog, faults: Iterable[Fault] = (), topic_ids: Iterable[UUID | None] = ()) -> None:
        self.manual = ManualClock()
        super().__init__("b1", timeout_s=10, clock=self.manual, sleep=lambda s: self.manual.advance_ms(round(s * 1000)))
        self.log = log
        self.faults = deque(faults)
        self.topic_ids = deque(topic_ids)
        self.asked: list[int] = []
        self.lookups = 0
        self.free: list[FakeConnection] = []

    def metadata(self, topics: Any = None) -> Any:
        self.lookups += 1
        topic_id: UUID | None = TOPIC_ID
        if self.topic_ids:
            topic_id = self.topic_ids.popleft() if len(self.topic_ids) > 1 else self.topic_ids[0]
        code = ErrorCode.none if topic_id else ErrorCode.unknown_topic_or_partition
        partition = SimpleNamespace(partition_index=0, leader_id=1, error_code=ErrorCode.none)
        topic = SimpleNamespace(name="t", topic_id=topic_id, error_code=code, partitions=[partition])
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=1, host="b1", port=9092)], topics=[topic])

    def ask_node(self, node: Node, api: Api, body: Body) -> Any:
        raise KafkaError(ErrorCode.unknown_server_error, "nothing but fetches is asked here")

    def acquire_connection(self, node: Node) -> Any:
        return self.free.pop() if self.free else FakeConnection(self.log, self.faults, self.asked)

    def release_connection(self, node: Node, connection: Any) -> None:
        if not connection.in_flight and not connection.is_broken:
            self.free.append(connection)
