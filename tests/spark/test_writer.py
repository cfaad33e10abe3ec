"""The writers that Spark is given, driven as Spark drives them, in this process."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_skep.write import decisions, writer
from pyspark_skep.write.partition_access import PartitionAccess
from pyspark_skep.write.writer import StreamWriter, stream_writer
from skep.base.errors import OptionError
from skep.client.admin import create_topic
from skep.client.cluster_client import ClusterClient
from skep.client.produce.transactions import list_open_transactions
from skep.testing import EmbeddedBroker
from tests.spark.driver_model import PARTITIONS, committed_rows

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options={"transaction.max.timeout.ms": "120000"}) as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"out-{uuid4().hex[:8]}"
    with ClusterClient(broker.bootstrap_servers) as cluster:
        create_topic(cluster, name, PARTITIONS, {})
    return name


class Task:
    """What Spark tells a task about itself."""

    def __init__(self, query: str) -> None:
        self._properties = {writer.QUERY_ID: query, writer.JOB_GROUP: "run"}

    def getLocalProperty(self, name: str) -> str:
        return self._properties[name]

    def partitionId(self) -> int:
        return 0

    def attemptNumber(self) -> int:
        return 0


def open_writer(broker: EmbeddedBroker, topic: str, **options: str) -> StreamWriter:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    return stream_writer({**given, **{name.replace("_", "."): text for name, text in options.items()}}, SCHEMA, False)


def write(stream: StreamWriter, *values: bytes) -> Any:
    return stream.write(iter([pa.RecordBatch.from_pydict({"value": list(values)})]))


def test_a_timeout_that_the_broker_does_not_allow_is_refused_before_any_task_runs(
    broker: EmbeddedBroker, topic: str
) -> None:
    with pytest.raises(OptionError, match=r"kafka.transaction.timeout.ms=300000 .* transaction.max.timeout.ms"):
        open_writer(broker, topic)
    open_writer(broker, topic, kafka_transaction_timeout_ms="120000")
    open_writer(broker, topic, delivery="at-least-once")


def test_a_stream_at_least_once_writes_at_once_and_again_when_it_is_replayed(
    skep_fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, topic = skep_fresh_broker, "out"
    with ClusterClient(broker.bootstrap_servers) as cluster:
        create_topic(cluster, topic, PARTITIONS, {})
    monkeypatch.setattr(writer, "_task", lambda: Task(uuid4().hex))
    stream = open_writer(broker, topic, delivery="at-least-once")
    given_up = write(stream, b"a", b"b")
    assert committed_rows(broker.bootstrap_servers, topic) == Counter(["a", "b"]), "before anything is committed"
    stream.abort([given_up], 0)
    stream.commit([write(stream, b"a", b"b")], 0)
    assert committed_rows(broker.bootstrap_servers, topic) == Counter(["a", "b"] * 2)
    with ClusterClient(broker.bootstrap_servers) as cluster:
        assert list_open_transactions(cluster) == []
        assert PartitionAccess(cluster).topic(decisions.TOPIC) is None


def test_a_stream_exactly_once_is_seen_when_committed_and_not_again_when_replayed(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = uuid4().hex
    monkeypatch.setattr(writer, "_task", lambda: Task(query))
    stream = open_writer(broker, topic, kafka_transaction_timeout_ms="60000")
    stream.abort([write(stream, b"a", b"b")], 0)
    assert committed_rows(broker.bootstrap_servers, topic) == Counter()
    stream.commit([write(stream, b"a", b"b")], 0)
    stream.commit([write(stream, b"a", b"b")], 0)
    assert committed_rows(broker.bootstrap_servers, topic) == Counter(["a", "b"])
