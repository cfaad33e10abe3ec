"""Spark's own Kafka connector on a Skep broker: it reads and writes the rows that ``format("skep")`` does.

Needs the connector's jars, which Maven downloads: ``make test-kafka``. ``make test`` leaves this out.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession

from bench.kafka.connector import connector_session
from bench.peers import create_topic
from bench.spark_session import into_topic
from skep.testing import EmbeddedBroker

pytestmark = pytest.mark.kafka

PARTITIONS = 3
ROWS = 1_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = connector_session()
    yield session
    session.stop()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


def test_both_connectors_read_the_same_rows(spark: SparkSession, broker: EmbeddedBroker) -> None:
    create_topic(broker.bootstrap_servers, "orders", PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"})
    producer.produce("orders", b"no key", partition=0)
    producer.produce("orders", None, b"a tombstone", partition=1)
    producer.produce("orders", b"", b"", partition=2, headers=[("origin", b"shop"), ("origin", None), ("", b"")])
    for number in range(ROWS):
        producer.produce("orders", f"order {number}", str(number), timestamp=1_700_000_000_000 + number)
    producer.flush()

    ours, theirs = (_all_rows(spark, broker, source, "orders") for source in ("skep", "kafka"))

    assert len(ours) == ROWS + 3
    assert ours == theirs
    assert _load(spark, broker, "skep", "orders").dtypes == _load(spark, broker, "kafka", "orders").dtypes


def test_both_connectors_write_a_row_to_the_same_partition(spark: SparkSession, broker: EmbeddedBroker) -> None:
    def rows() -> DataFrame:
        key = "CASE WHEN id % 10 = 0 THEN '' ELSE CAST(id AS STRING) END AS key"
        return spark.range(0, ROWS, 1, 2).selectExpr(key, "nullif(concat('order ', id), 'order 7') AS value")

    written = {}
    for source in ("skep", "kafka"):
        create_topic(broker.bootstrap_servers, source, PARTITIONS)
        into_topic(rows, broker.bootstrap_servers, source, source=source)
        found = _all_rows(spark, broker, "kafka", source)
        written[source] = sorted((row.partition, row.key, row.value or b"") for row in found)

    assert len(written["skep"]) == ROWS
    assert written["skep"] == written["kafka"]
    assert len({partition for partition, _, _ in written["skep"]}) == PARTITIONS


def _load(spark: SparkSession, broker: EmbeddedBroker, source: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format(source).options(**options, **{"kafka.isolation.level": "read_committed"}).load()


def _all_rows(spark: SparkSession, broker: EmbeddedBroker, source: str, topic: str) -> list[Row]:
    return _load(spark, broker, source, topic).orderBy("partition", "offset").collect()
