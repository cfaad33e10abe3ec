"""Logs, topics and image changes: what grows with the number of partitions, segments, batches or producers."""

import asyncio
import datetime
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from bench.frames import produce
from bench.raw_client import RawClient
from bench.stalls.stall import Stall, asking, request
from skep.base.clock import SystemClock
from skep.base.config.topic_config import TopicConfig
from skep.base.files.os_files import OsFiles
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.replication.follower.truncations import Truncations
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from skep.testing import EmbeddedBroker, EmbeddedCluster
from skep.wire import apis

PARTITIONS = 10_000
PRODUCERS = 10_000
PIPELINED = 20
SMALL_BATCHES = 1_000_000
BATCHES_PER_REQUEST = 50_000
TIMEOUT = datetime.timedelta(seconds=60)
NOW_MS = time.time_ns() // 1_000_000
MANY = {"skep.max.partitions": "50000"}


def _topic(
    name: str, partitions: int, configs: Iterable[tuple[str, str]] = (), replicas: Iterable[int] | None = None
) -> dict[str, Any]:
    """As CreateTopics wants it; with ``replicas``, the brokers of every partition."""
    chosen = list(replicas or ())
    return {
        "name": name,
        "num_partitions": -1 if chosen else partitions,
        "replication_factor": -1 if chosen else 1,
        "assignments": [
            {"partition_index": index, "broker_ids": chosen} for index in range(partitions if chosen else 0)
        ],
        "configs": [{"name": option, "value": text} for option, text in configs],
    }


def _create(topic: dict[str, Any]) -> bytes:
    return request(apis.CREATE_TOPICS, 5, {"topics": [topic], "timeout": TIMEOUT})


def _record(value: bytes = b"v", **more: Any) -> bytes:
    return build_batch([NewRecord(b"k", value, NOW_MS)], **more)


def _produce(topic: str, data: list[dict[str, Any]]) -> bytes:
    topics = [{"name": topic, "partition_data": data}]
    return request(apis.PRODUCE, 9, {"transactional_id": None, "acks": -1, "timeout": TIMEOUT, "topic_data": topics})


def _one_record_everywhere(topic: str, partitions: int) -> Iterable[bytes]:
    """A few partitions at a time: the first append to each makes its directory."""
    data = [{"index": index, "records": _record()} for index in range(partitions)]
    return (_produce(topic, data[start : start + 500]) for start in range(0, partitions, 500))


def _small_batches(count: int) -> Iterable[bytes]:
    """Requests with ``count`` one-record batches for partition 0 of t."""
    frame = _produce("t", [{"index": 0, "records": _record()}] * BATCHES_PER_REQUEST)
    return itertools.repeat(frame, count // BATCHES_PER_REQUEST)


def _asking(make: Callable[[], Iterable[bytes]]) -> Callable[[Any], None]:
    """``asking`` with frames that are made when they are needed."""
    return lambda broker: asking(*make())(broker)


def _making(
    topic: dict[str, Any], fill: Callable[[], Iterable[bytes]] = lambda: ()
) -> Callable[[EmbeddedBroker], None]:
    """A ``prepare`` that makes a topic and then sends the frames of ``fill``, one at a time."""

    def prepare(broker: EmbeddedBroker) -> None:
        with RawClient(broker.bootstrap_servers) as client:
            for frame in itertools.chain([_create(topic)], fill()):
                client.ask(frame)

    return prepare


_many_partitions = _making(_topic("t", PARTITIONS))
_full_partitions = _making(_topic("t", PARTITIONS), lambda: _one_record_everywhere("t", PARTITIONS))


def _delete_records() -> bytes:
    partitions = [{"partition_index": index, "offset": -1} for index in range(PARTITIONS)]
    return request(apis.DELETE_RECORDS, 2, {"topics": [{"name": "t", "partitions": partitions}], "timeout": TIMEOUT})


def _offsets_for_leader_epoch() -> bytes:
    partitions = [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0} for index in range(PARTITIONS)]
    return request(apis.OFFSET_FOR_LEADER_EPOCH, 4, {"topics": [{"topic": "t", "partitions": partitions}]})


def _of_many_producers() -> Iterable[bytes]:
    return (
        produce("t", 0, _record(producer_id=producer_id, producer_epoch=0, base_sequence=0))
        for producer_id in range(PRODUCERS)
    )


def _describe_producers() -> bytes:
    return request(apis.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "t", "partition_indexes": [0] * 100}]})


def _fetch_at(offset: int) -> bytes:
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1, "current_leader_epoch": -1}
    body = {
        "replica_id": -1,
        "max_wait": datetime.timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [wanted]}],
    }
    return request(apis.FETCH, 12, body)


def _large_keyed_batches() -> list[bytes]:
    """Four MiB each."""
    records = [NewRecord(b"%08d" % number, bytes(26), NOW_MS) for number in range(100_000)]
    batch = build_batch(records, codec=Codec.GZIP)
    return [produce("t", 0, batch)] * PIPELINED


def _many_at_another_broker(replicas: Iterable[int], partitions: int) -> Callable[[EmbeddedCluster], None]:
    def act(cluster: EmbeddedCluster) -> None:
        frame = _create(_topic("t", partitions, replicas=replicas))
        with RawClient(cluster.brokers[2]) as client:
            client.ask(frame)
        time.sleep(3)  # broker 1 hears of it

    return act


def _full_here(cluster: EmbeddedCluster) -> None:
    """Broker 1 has 3,000 partitions with a record each."""
    with RawClient(cluster.brokers[1]) as client:
        client.ask(_create(_topic("here", 3_000, replicas=[1])))
        for frame in _one_record_everywhere("here", 3_000):
            client.ask(frame)


MAX_TIMESTAMP = -3


def _list_offsets() -> bytes:
    partitions = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": MAX_TIMESTAMP}]
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": partitions}]}
    return request(apis.LIST_OFFSETS, 7, body)


def _synced_produce_beside_lookups(broker: EmbeddedBroker) -> float:
    """The worst of synced produces while fourteen clients look for the largest timestamp, which means every header."""
    frame = produce("synced", 0, _record())
    worst = 0.0
    clients = [RawClient(broker.bootstrap_servers) for _ in range(14)]
    try:
        for client in clients:
            client.send(_list_offsets())
        with RawClient(broker.bootstrap_servers) as client:
            for _ in range(50):
                started = time.perf_counter()
                client.ask(frame)
                worst = max(worst, time.perf_counter() - started)
    finally:
        for client in clients:
            client.close()
    return worst


def _truncation(_: Any) -> float:
    """How long the loop stands still while a log is cut that holds 300 MB of small batches."""
    return asyncio.run(_truncated())


async def _truncated() -> float:
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as path, ThreadPoolExecutor(4) as threads:
        directory = LogDirectory(OsFiles(), path, clock)
        directory.open()
        log = directory.log(TopicPartition("t", 0), TopicConfig(), UUID(int=1))
        batch = _record(bytes(80))
        header = read_header(batch)
        for _ in range(300_000_000 // len(batch)):
            log.append(batch, header, LeaderEpoch(0), NOW_MS)
        partition = Partition(log, UUID(int=1), LeaderEpoch(0), clock, threads, Offset(0))
        partition.follow(LeaderEpoch(1))
        partition.truncations = Truncations(threads, Supervisor(), _nothing, lambda partition: None)
        with _WorstGap() as gap:
            cut = partition.truncate_to(Offset(log.log_end_offset - 1))
            if cut is not None:
                await cut
            await asyncio.sleep(0.05)
        return gap.worst_s


async def _nothing() -> None:
    """No checkpoint is written."""


class _WorstGap:
    """The longest time for which a callback that asks for every turn of the loop had none."""

    def __enter__(self) -> "_WorstGap":
        self.worst_s = 0.0
        self._last = time.perf_counter()
        self._is_over = False
        self._tick()
        return self

    def _tick(self) -> None:
        now = time.perf_counter()
        self.worst_s, self._last = max(self.worst_s, now - self._last), now
        if not self._is_over:
            asyncio.get_running_loop().call_later(0.001, self._tick)

    def __exit__(self, *_error: object) -> None:
        self._is_over = True


_sparse_index = _making(_topic("t", 1, [("index.interval.bytes", "2147483647")]), lambda: _small_batches(SMALL_BATCHES))


def _fill_with_deleted_maximum() -> Iterable[bytes]:
    """The record with the largest timestamp is the first, and is deleted: only headers know which is the next."""
    yield produce("t", 0, build_batch([NewRecord(b"k", b"v", NOW_MS + 1)]))
    yield from _small_batches(SMALL_BATCHES)
    partitions = [{"partition_index": 0, "offset": 1}]
    yield request(apis.DELETE_RECORDS, 2, {"topics": [{"name": "t", "partitions": partitions}], "timeout": TIMEOUT})


def _long_and_synced(broker: EmbeddedBroker) -> None:
    _making(_topic("t", 1), _fill_with_deleted_maximum)(broker)
    _making(_topic("synced", 1, [("flush.messages", "1")]))(broker)


def _create_partitions() -> bytes:
    grown = {"name": "t", "count": 2 * PARTITIONS, "assignments": None}
    return request(apis.CREATE_PARTITIONS, 2, {"topics": [grown], "timeout": TIMEOUT, "validate_only": False})


def _delete_topic() -> bytes:
    return request(apis.DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout": TIMEOUT})


def _delete_topic_and_files(broker: EmbeddedBroker) -> None:
    """Files are moved away after the response."""
    asking(_delete_topic())(broker)
    deadline = time.monotonic() + 60
    while any(broker.data_dir.glob("t-*")) and time.monotonic() < deadline:
        time.sleep(0.1)


def _last_fetches() -> Iterable[bytes]:
    return (_fetch_at(SMALL_BATCHES - 100 + number) for number in range(PIPELINED))


_compacted = _topic("t", 1, [("cleanup.policy", "compact"), ("max.message.bytes", "10000000")])

STALLS = (
    Stall("idle", "nothing for three seconds, which is what the machine adds to every row", lambda _: time.sleep(3)),
    Stall(
        "delete-records",
        "DeleteRecords of 10,000 partitions",
        _asking(lambda: [_delete_records()]),
        _full_partitions,
        MANY,
    ),
    Stall(
        "delete-topic",
        "DeleteTopics of 10,000 partitions",
        _delete_topic_and_files,
        _full_partitions,
        MANY,
    ),
    Stall(
        "create-topic",
        "CreateTopics of 10,000 partitions",
        _asking(lambda: [_create(_topic("t", PARTITIONS))]),
        options=MANY,
    ),
    Stall(
        "create-partitions",
        "CreatePartitions of 10,000",
        _asking(lambda: [_create_partitions()]),
        _many_partitions,
        MANY,
    ),
    Stall(
        "describe-log-dirs",
        "DescribeLogDirs with 10,000 partitions",
        _asking(lambda: [request(apis.DESCRIBE_LOG_DIRS, 2, {"topics": None})]),
        _full_partitions,
        MANY,
    ),
    Stall(
        "describe-producers",
        "DescribeProducers, 100 times a partition with 10,000 producers",
        _asking(lambda: [_describe_producers()]),
        _making(_topic("t", 1), _of_many_producers),
    ),
    Stall(
        "offset-for-leader-epoch",
        "OffsetForLeaderEpoch of 10,000 partitions",
        _asking(lambda: [_offsets_for_leader_epoch()]),
        _full_partitions,
        MANY,
    ),
    Stall(
        "sparse-index",
        "index.interval.bytes=2147483647 and 20 pipelined fetches",
        _asking(_last_fetches),
        _sparse_index,
    ),
    Stall(
        "compacted-keys",
        "20 pipelined batches of 100,000 compressed records for a compacted topic",
        _asking(_large_keyed_batches),
        _making(_compacted),
    ),
    Stall(
        "housekeeping",
        "twelve seconds with 10,000 open partitions",
        lambda _: time.sleep(12),
        _full_partitions,
        MANY,
    ),
    Stall(
        "topic-elsewhere",
        "a topic of 3,000 partitions made on another broker",
        _many_at_another_broker([2], 3_000),
        _full_here,
        MANY,
        brokers=2,
    ),
    Stall(
        "topic-replicated",
        "a topic of 3,000 partitions with a replica here, made on another broker",
        _many_at_another_broker([2, 1], 3_000),
        options=MANY,
        brokers=2,
    ),
    Stall(
        "lookup-by-time",
        "14 ListOffsets of the largest timestamp that walk over a segment: worst synced produce",
        _synced_produce_beside_lookups,
        _long_and_synced,
    ),
    Stall("truncation", "a log of 300 MB of small batches is cut: the loop's longest gap", _truncation, brokers=0),
)
