"""Writing from Spark: rows to records, refusals before any task runs, tasks that fail, both deliveries."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from skep.client.cluster_client import ClusterClient
from skep.client.produce.transactions import list_open_transactions
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics

pytestmark = pytest.mark.xdist_group("spark")

Write = Callable[..., None]
PATIENCE_S = 30.0


@pytest.fixture
def write(broker: EmbeddedBroker) -> Write:
    """``write(rows, topic="orders")``: appends rows, with these options."""

    def save(rows: DataFrame, mode: str = "append", **options: str) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
        rows.write.format("skep").options(**given).mode(mode).save()

    return save


def records(broker: EmbeddedBroker, topic: str, partitions: int = 1) -> list[Message]:
    """All that a read_committed reader gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found, at_end = [], set()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        while len(at_end) < partitions:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{topic} does not come to its end"
            if message.error() is None:
                found.append(message)
            else:
                at_end.add(message.partition())
    finally:
        consumer.close()
    return found


def values(broker: EmbeddedBroker, topic: str, partitions: int = 1) -> "Counter[str]":
    return Counter(message.value().decode() for message in records(broker, topic, partitions))


def open_transactions(broker: EmbeddedBroker) -> list[str]:
    with ClusterClient(broker.bootstrap_servers) as cluster:
        return [transaction.transactional_id for transaction in list_open_transactions(cluster)]


def numbers(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")


def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of each task gives all its rows and fails then."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("made to fail")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_each_row_is_a_record_in_the_partition_that_its_key_has_for_every_client(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, write: Write, delivery: str
) -> None:
    topics.create(topic, 4)
    topics.create(f"{topic}-other", 4)
    write(numbers(spark, 500, 3), topic=topic, delivery=delivery)
    found = records(broker, topic, 4)
    assert Counter(message.value() for message in found) == Counter(b"%d" % number for number in range(500))
    java_like = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for number in range(500):
        java_like.produce(f"{topic}-other", b"", key=b"%d" % number)
    assert java_like.flush(PATIENCE_S) == 0
    other = records(broker, f"{topic}-other", 4)
    assert {message.key(): message.partition() for message in found} == {
        message.key(): message.partition() for message in other
    }


def test_columns_say_topic_partition_and_headers_and_null_values_are_tombstones(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, write: Write
) -> None:
    topics.create(f"{topic}-a", 3)
    topics.create(f"{topic}-b", 3)
    rows = spark.sql(
        f"""
        SELECT * FROM VALUES
            ('k1', 'v1', '{topic}-a', 2, array(named_struct('key', 'h', 'value', X'01')), 1),
            ('k2', NULL, '{topic}-b', 0, array(named_struct('key', 'n', 'value', CAST(NULL AS BINARY))), 2),
            (NULL, 'v3', '{topic}-b', 1, NULL, 3)
        AS rows(key, value, topic, partition, headers, ignored)
        """
    )
    write(rows)
    [first] = records(broker, f"{topic}-a", 3)
    assert (first.key(), first.value(), first.partition(), first.headers()) == (b"k1", b"v1", 2, [("h", b"\x01")])
    found = {message.partition(): message for message in records(broker, f"{topic}-b", 3)}
    assert (found[0].key(), found[0].value(), found[0].headers()) == (b"k2", None, [("n", None)])
    assert (found[1].key(), found[1].value(), found[1].headers()) == (None, b"v3", None)


def test_the_option_topic_goes_before_the_column(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, write: Write
) -> None:
    topics.create(topic)
    write(spark.sql("SELECT 'v' AS value, 'no-such-topic' AS topic"), topic=topic)
    assert values(broker, topic) == {"v": 1}


@pytest.mark.parametrize(
    ("rows", "options", "mode", "problem"),
    [
        ("SELECT '1' AS key", {"topic": "t"}, "append", "rows need a column value"),
        ("SELECT 1 AS value", {"topic": "t"}, "append", "column value is int, but must be string or binary"),
        ("SELECT '1' AS value", {}, "append", "no topic is given"),
        ("SELECT '1' AS value, 1 AS topic", {}, "append", "column topic is int, but must be string"),
        ("SELECT '1' AS value, 1L AS partition", {"topic": "t"}, "append", "column partition is bigint"),
        ("SELECT '1' AS value, 'x' AS headers", {"topic": "t"}, "append", "column headers is string"),
        ("SELECT '1' AS value", {"topic": "no-such-topic"}, "append", "there is no topic 'no-such-topic'"),
        ("SELECT '1' AS value", {"topic": "t"}, "overwrite", "a topic cannot be overwritten"),
        ("SELECT '1' AS value", {"topic": "t"}, "ignore", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("SELECT '1' AS value", {"topic": "t"}, "error", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("SELECT '1' AS value", {"topic": "t", "kafka.acks": "1"}, "append", "kafka.acks=1: only all is supported"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_task_runs(
    spark: SparkSession, write: Write, rows: str, options: dict[str, str], mode: str, problem: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        write(spark.sql(rows), mode, **options)
    assert problem in str(refused.value)
    assert "Job aborted" not in str(refused.value)


def test_a_row_without_topic_or_too_large_fails_the_write_by_name_and_leaves_nothing(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, write: Write
) -> None:
    topics.create(topic, configs={"max.message.bytes": "10000"})
    with pytest.raises(PySparkException, match=r"row 2: .*no topic"):
        write(spark.sql(f"SELECT '1' AS value, IF(id = 2, NULL, '{topic}') AS topic FROM range(0, 5, 1, 1)"))
    with pytest.raises(PySparkException, match=rf"(?s)row 3\b.*{topic}|{topic}.*row 3\b"):
        write(spark.sql("SELECT IF(id = 3, repeat('x', 20000), 'y') AS value FROM range(0, 5, 1, 1)"), topic=topic)
    assert values(broker, topic) == {}
    assert open_transactions(broker) == []


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_row_that_names_a_topic_that_is_not_there_fails_the_write_by_the_name(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, write: Write, delivery: str
) -> None:
    topics.create(topic)
    rows = spark.sql(f"SELECT '1' AS value, IF(id = 2, '{topic}-other', '{topic}') AS topic FROM range(0, 5, 1, 1)")
    with pytest.raises(PySparkException, match=f"row 2: there is no topic '{topic}-other': create it first"):
        write(rows, delivery=delivery)
    assert topics.admin.list_topics(timeout=30).topics.keys().isdisjoint({f"{topic}-other"}), "and none is made"
    if delivery == "exactly-once":
        assert values(broker, topic) == {}
    assert open_transactions(broker) == []


def test_rows_of_attempts_that_failed_are_not_seen(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, write: Write
) -> None:
    topics.create(topic, 2)
    rows = numbers(spark, 300, 3).mapInArrow(failing_at_first, "key string, value string")
    write(rows, topic=topic)
    assert values(broker, topic, 2) == Counter(str(number) for number in range(300))
    assert open_transactions(broker) == []


def test_at_least_once_loses_nothing_of_tasks_that_are_tried_again(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, write: Write
) -> None:
    topics.create(topic, 2)
    rows = numbers(spark, 300, 3).mapInArrow(failing_at_first, "key string, value string")
    write(rows, topic=topic, delivery="at-least-once")
    assert set(values(broker, topic, 2)) == {str(number) for number in range(300)}


def test_a_broker_that_is_killed_in_the_middle_of_a_batch_costs_time_and_no_row(
    spark: SparkSession, topics: Topics, topic: str, broker: EmbeddedBroker, write: Write, tmp_path: Path
) -> None:
    topics.create(topic, 2)
    begun = tmp_path / "begun"

    def telling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            yield batch

    def restart() -> None:
        while not begun.exists() and not done.wait(0.05):
            pass
        broker.kill()
        broker.restart()

    done = threading.Event()
    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        write(numbers(spark, 200_000, 4).mapInArrow(telling, "key string, value string"), topic=topic)
    finally:
        done.set()
        restarting.join()
    found = values(broker, topic, 2)
    assert len(found) == found.total() == 200_000


def test_a_stream_writes_each_row_once_and_goes_on_where_its_checkpoint_is(
    spark: SparkSession, broker: EmbeddedBroker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(topic, 2)
    topics.create(f"{topic}-in", 2)

    def run() -> None:
        rows = (
            spark.readStream.format("skep")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", f"{topic}-in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40")
            .load()
            .select("key", "value")
        )
        query = (
            rows.writeStream.format("skep")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    topics.fill(f"{topic}-in", range(100), partition=lambda index: index % 2)
    run()
    topics.fill(f"{topic}-in", range(100, 150), partition=lambda index: index % 2)
    run()
    assert values(broker, topic, 2) == Counter(str(number) for number in range(150))
    assert open_transactions(broker) == []
