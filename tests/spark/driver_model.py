"""Spark's side of an exactly-once write, played without Spark: tasks, drivers that stop at any request, and readers."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, TopicPartition

from pyspark_skep.write import decisions
from pyspark_skep.write.decisions import Decision, newest_decision
from pyspark_skep.write.driver_transaction import DriverTransaction
from pyspark_skep.write.epoch_commit import commit_epoch
from pyspark_skep.write.partition_access import PartitionAccess
from pyspark_skep.write.task_transactions import TaskTransaction, WrittenRange, driver_id, task_id
from skep.client.admin import create_topic
from skep.client.cluster_client import ClusterClient
from skep.client.connection import Connection
from skep.client.produce.transactions import add_partitions, init_producer_id, list_open_transactions
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec

PARTITIONS = 3
KEEPS_ALL = {"log.retention.ms": "-1"}
"""Options of the brokers. The rows are of 2023: retention, which looks every five minutes, would take them away."""
LOST_REQUEST, LOST_ANSWER = "the request was lost", "the answer was lost"


class Stopped(BaseException):
    """The process is gone. Nothing may catch it."""


@contextmanager
def stopped_at(request: int, how: str) -> Iterator[list[str]]:
    """Inside, whoever sends the given request (counted from 0) is stopped: before it is sent, or after it was answered.

    Gives the names of the requests so far. When there are fewer, nothing happens.
    """
    asked: list[str] = []
    ask = Connection.ask

    def counted(connection: Connection, api: Any, body: Any) -> Any:
        asked.append(api.name)
        is_last = len(asked) == request + 1
        if len(asked) > request + 1 or (is_last and how == LOST_REQUEST):
            raise Stopped
        answer = ask(connection, api, body)
        if is_last:
            raise Stopped
        return answer

    with mock.patch.object(Connection, "ask", counted):
        try:
            yield asked
        except Stopped:
            pass


class Run:
    """One start of a query: tasks of its own, and a driver with connections of its own."""

    def __init__(self, bootstrap: str, query: str, topic: str, timeout_ms: int = 60_000) -> None:
        self.cluster = ClusterClient(bootstrap)
        self.access = PartitionAccess(self.cluster)
        self.query, self.topic = query, topic
        self.run = uuid4().hex[:8]
        self.timeout_ms = timeout_ms

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def task(self, number: int, rows: Sequence[str], attempt: int = 0) -> TaskTransaction:
        """Writes rows over all partitions, two batches to each that gets more than one row; leaves it open."""
        transactional_id = task_id(self.query, self.run, number, attempt)
        identity = init_producer_id(self.cluster, transactional_id, self.timeout_ms)
        written = []
        for partition in range(PARTITIONS):
            mine = rows[partition::PARTITIONS]
            if not mine:
                continue
            add_partitions(self.cluster, transactional_id, identity, [(self.topic, partition)])
            sequence = 0
            offsets = []
            for part in (mine[:1], mine[1:]):
                if not part:
                    continue
                batch = build_batch(
                    [NewRecord(row.encode(), row.encode(), 1_700_000_000_000) for row in part],
                    codec=Codec.ZSTD,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                    base_sequence=sequence,
                    is_transactional=True,
                )
                _, end = self.access.bounds(self.topic, partition)
                self.access.produce(self.topic, partition, batch, transactional_id)
                offsets += [end, end + len(part) - 1]
                sequence += len(part)
            written.append(WrittenRange(self.topic, partition, offsets[0], offsets[-1], len(mine)))
        return TaskTransaction(transactional_id, identity.producer_id, identity.producer_epoch, tuple(written))

    def tasks(self, rows: Sequence[str], count: int) -> list[TaskTransaction]:
        return [self.task(number, rows[number::count]) for number in range(count)]


def rows_of(query: str, epoch: int, count: int = 11) -> list[str]:
    return [f"{query}/{epoch}/{number}" for number in range(count)]


def committed_rows(bootstrap: str, topic: str) -> "Counter[str]":
    """All rows that a read_committed reader gets, up to the end of the topic: fails when a transaction is left open."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid4().hex,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: Counter[str] = Counter()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ends = {}
        while len(ends) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None, "a partition does not come to its end"
            if message.error() is None:
                found[message.value().decode()] += 1
                continue
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends[message.partition()] = message.offset()
    finally:
        consumer.close()
    return found


class Queries:
    """Runs of many queries into one topic, and what it must hold in the end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.expected: Counter[str] = Counter()

    def query(self) -> str:
        return uuid4().hex

    def start(self, query: str, timeout_ms: int = 60_000) -> Run:
        return Run(self.bootstrap, query, self.topic, timeout_ms)

    def epoch(self, query: str, epoch: int, cuts: int) -> None:
        """A run that goes through."""
        with self.start(query) as run:
            commit_epoch(run.access, query, epoch, run.tasks(rows_of(query, epoch), cuts))

    def expect(self, query: str, *epochs: int) -> None:
        for epoch in epochs:
            self.expected.update(rows_of(query, epoch))

    def check(self) -> None:
        """Each row once, and nothing is left open."""
        assert committed_rows(self.bootstrap, self.topic) == self.expected
        with ClusterClient(self.bootstrap) as cluster:
            assert list_open_transactions(cluster, "spark/") == []


def decide(run: Run, query: str, decision: Decision) -> None:
    """Records a decision and stops there."""
    create_topic(run.cluster, decisions.TOPIC, decisions.PARTITIONS, decisions.TOPIC_CONFIGS)
    driver = DriverTransaction(run.access, driver_id(query))
    driver.append_record(decisions.TOPIC, decisions.partition_of(query), query.encode(), decisions.encode(decision), 0)
    driver.commit()


def decided(run: Run, query: str, patience_s: float = 10) -> Decision | None:
    """The newest decision below the end of the partition as its leader knows it."""
    _, end = run.access.bounds(decisions.TOPIC, decisions.partition_of(query))
    return newest_decision(run.access, query, before=end, patience_s=patience_s)


def stop_points(play: Callable[[int, str], bool]) -> int:
    """Plays with a stop at the first request, the second, and so on, in both ways, until one play is not stopped."""
    for request in range(10_000):
        if not all(play(request, how) for how in (LOST_REQUEST, LOST_ANSWER)):
            return request
    raise AssertionError("the driver never comes to its end")
