"""Bad input and faults under queries of Spark, end to end: nothing is lost silently, and errors say what is wrong.

What one part does with such things is tested beside it (readers, options, parsing, commits, ``check_java``); here whole
queries meet them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_skep.parsing import dead_letters, good_rows, parse_json
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.spark.test_writing import records
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("spark")

Read = Callable[..., DataFrame]
Copy = Callable[..., None]
PATIENCE_S = 120
LARGE = 10 << 20
# Enough for a broker that is there, also on a machine that is busy.
SHORT = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def copy(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Copy]:
    """``copy(rows, "orders")``: appends what is new in a stream to a topic, from where the checkpoint is."""

    def run(rows: DataFrame, topic: str, checkpoint: str = "checkpoint", **options: str) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, **options}
        writer = rows.writeStream.format("skep").options(**given)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S), "the query ends"

    yield run
    for query in spark.streams.active:
        query.stop()


def committed(broker: EmbeddedBroker, topic: str) -> list[int]:
    return sorted(int(message.value()) for message in records(broker, topic))


def test_whatever_is_in_a_topic_is_a_good_row_or_a_dead_letter_as_it_was(
    broker: EmbeddedBroker, topics: Topics, topic: str, read: Read, copy: Copy
) -> None:
    large = {"max.message.bytes": str(LARGE + (1 << 20))}
    good, bad = topics.create(f"{topic}-good", 1, large), topics.create(f"{topic}-bad", 1, large)
    topics.create(topic, 1, large)
    sent = [
        (b"1", b'{"id": 1}', []),
        (None, b"not JSON", [("a", None), ("a", b""), ("b", b"\xff")]),
        (b"", None, []),
        (b"\xff", b"\xff\x00", [("", b"1")]),
        (b"2", b"x" * LARGE, []),
        (b"3", b'{"id": 3, "rest": "%s"}' % (b"y" * LARGE), []),
    ]
    producer = Producer({"bootstrap.servers": topics.bootstrap, "message.max.bytes": LARGE + (1 << 20)})
    for key, value, headers in sent:
        producer.produce(topic, value, key, headers=headers)
    assert producer.flush(60) == 0
    parsed = parse_json(read(topic, stream=True, startingOffsets="earliest", includeHeaders="true"), "id INT NOT NULL")
    copy(good_rows(parsed, "key", "value").select("key", "value"), good, "good")
    copy(dead_letters(parsed, headers=True), bad, "bad", includeHeaders="true")

    kept = [(message.key(), message.value()) for message in records(broker, good)]
    assert kept == [(key, value) for key, value, _ in (sent[0], sent[5])]
    letters = records(broker, bad)
    assert [(letter.key(), letter.value()) for letter in letters] == [(key, value) for key, value, _ in sent[1:5]]
    for letter, (_, _, headers) in zip(letters, sent[1:5], strict=True):
        assert (letter.headers() or [])[: len(headers)] == headers
        assert "dlq.reason" in dict(letter.headers() or [])


def test_a_broker_that_is_away_at_the_start_is_an_error_when_its_time_is_over(
    spark: SparkSession, topics: Topics, topic: str, read: Read, copy: Copy
) -> None:
    topics.create(topic)
    topics.fill(topic, range(3))
    away = {**SHORT, "kafka.bootstrap.servers": NOWHERE}
    with pytest.raises(PySparkException, match=f"no broker answers at {NOWHERE}"):
        copy(read(topic, stream=True, startingOffsets="earliest", **away).select("value"), topic, "reading")
    gone = {"kafka.bootstrap.servers": NOWHERE, "kafka.request.timeout.ms": "1000", "kafka.delivery.timeout.ms": "2000"}
    with pytest.raises(PySparkException, match=f"no broker answers at {NOWHERE}"):
        spark.sql("SELECT 'v' AS value").write.format("skep").options(topic=topic, **gone).mode("append").save()


def test_a_broker_that_stays_away_ends_the_query_and_a_restart_loses_nothing(
    spark: SparkSession, topic: str, skep_fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    broker = skep_fresh_broker
    own = Topics(broker.bootstrap_servers)
    source, sink = own.create(topic), own.create(f"{topic}-out")

    def start(**trigger: object):  # type: ignore[no-untyped-def]
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        rows = spark.readStream.format("skep").options(**given, **SHORT, subscribe=source, startingOffsets="earliest")
        writer = rows.load().select("value").writeStream.format("skep").options(**given, topic=sink)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()

    query = start(processingTime="0 seconds")
    try:
        own.fill(source, range(10))
        wait_until(lambda: committed(broker, sink) == list(range(10)), "the first rows are copied", PATIENCE_S)
        broker.kill()
        with pytest.raises(StreamingQueryException, match=f"no broker answers at {broker.bootstrap_servers}"):
            assert query.awaitTermination(PATIENCE_S), "the query ends"
    finally:
        query.stop()
    broker.restart()
    own.fill(source, range(10, 20))
    assert start(availableNow=True).awaitTermination(PATIENCE_S)
    assert committed(broker, sink) == list(range(20))


def test_a_checkpoint_of_another_topic_is_refused(
    broker: EmbeddedBroker, topics: Topics, topic: str, read: Read, copy: Copy
) -> None:
    other, sink = topics.create(f"{topic}-other"), topics.create(f"{topic}-out")
    topics.create(topic)
    topics.fill(topic, range(5))
    topics.fill(other, range(5, 10))
    copy(read(topic, stream=True, startingOffsets="earliest").select("value"), sink)
    with pytest.raises(StreamingQueryException, match=f"topic '{topic}' of the checkpoint was deleted"):
        copy(read(other, stream=True, startingOffsets="earliest").select("value"), sink)
    assert committed(broker, sink) == list(range(5))


def test_rows_that_were_deleted_before_they_were_read_end_the_query_or_are_left_out(
    broker: EmbeddedBroker, topics: Topics, topic: str, read: Read, copy: Copy
) -> None:
    sink = topics.create(f"{topic}-out")
    topics.create(topic)
    topics.fill(topic, range(10))
    copy(read(topic, stream=True, startingOffsets="earliest").select("value"), sink)
    topics.fill(topic, range(10, 30))
    [deleted] = topics.admin.delete_records([TopicPartition(topic, 0, 20)]).values()
    deleted.result(30)
    with pytest.raises(StreamingQueryException, match="is to be read from offset 10 and begins at 20"):
        copy(read(topic, stream=True).select("value"), sink)
    assert committed(broker, sink) == list(range(10))
    copy(read(topic, stream=True, failOnDataLoss="false").select("value"), sink)
    assert committed(broker, sink) == [*range(10), *range(20, 30)]


def test_a_topic_that_is_deleted_under_the_sink_ends_the_query_and_a_new_one_gets_the_rows(
    broker: EmbeddedBroker, topics: Topics, topic: str, read: Read, copy: Copy
) -> None:
    sink = topics.create(f"{topic}-out")
    topics.create(topic)
    topics.fill(topic, range(10))
    rows = read(topic, stream=True, startingOffsets="earliest").select("value")
    copy(rows, sink)
    topics.delete(sink)
    topics.fill(topic, range(10, 20))
    with pytest.raises(StreamingQueryException, match=f"there is no topic '{sink}'"):
        copy(rows, sink)
    topics.create(sink)
    copy(rows, sink)
    assert committed(broker, sink) == list(range(10, 20))
