"""Topics read by Spark as tables, in a plain session with nothing registered and nothing set."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("spark")

Read = Callable[..., DataFrame]
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def push_down(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSH_DOWN, "true")
    yield
    spark.conf.unset(PUSH_DOWN)


def test_a_topic_is_a_table_with_the_rows_of_sparks_kafka_source(topics: Topics, topic: str, read: Read):
    topics.create(topic, 2)
    topics.fill(topic, [b"a", None, b""], partition=1, timestamp_ms=lambda index: 1700000000000 + index)
    table = read(topic, includeHeaders="true")
    assert table.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    milliseconds = f.unix_millis("timestamp").alias("ms")
    rows = table.select("key", "value", "topic", "partition", "offset", milliseconds, "timestampType", "headers")
    expected = [
        (b"%d" % number, value, topic, 1, number, 1700000000000 + number, 0, None)
        for number, value in enumerate([b"a", None, b""])
    ]
    assert [tuple(row) for row in rows.orderBy("offset").collect()] == expected


def test_every_row_is_read_once_however_it_is_cut(topics: Topics, topic: str, read: Read):
    topics.create(topic, 3)
    topics.fill(topic, range(60_000), partition=lambda index: index % 3)
    table = read(topic, minPartitions="7")
    number = f.col("value").cast("string").cast("long")
    [found] = table.select(f.count("*"), f.count_distinct("partition", "offset"), f.sum(number)).collect()
    assert tuple(found) == (60_000, 60_000, sum(range(60_000)))


def test_a_value_of_ten_megabytes_comes_whole(topics: Topics, topic: str, read: Read):
    from confluent_kafka import Producer

    topics.create(topic, 1, {"max.message.bytes": str(12 << 20)})
    producer = Producer({"bootstrap.servers": topics.bootstrap, "message.max.bytes": 12 << 20})
    producer.produce(topic, b"x" * (10 << 20))
    producer.produce(topic, b"small")
    assert producer.flush(60) == 0
    sizes = read(topic, **{"kafka.fetch.max.bytes": "100000"}).select(f.length("value")).collect()
    assert [row[0] for row in sizes] == [10 << 20, 5]


def test_a_topic_is_a_table_of_sql(spark: SparkSession, topics: Topics, topic: str, broker: EmbeddedBroker):
    topics.create(topic)
    topics.fill(topic, range(10))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING skep OPTIONS "
        f"(`kafka.bootstrap.servers` '{broker.bootstrap_servers}', subscribe '{topic}')"
    )
    assert spark.sql("SELECT count(*) FROM orders WHERE offset >= 4").collect()[0][0] == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "latest"}, "startingoffset: there is no such option; did you mean startingOffsets?"),
        ({"subscribePattern": "x"}, "subscribe and subscribePattern are given"),
        ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"startingOffsets": "latest"}, "a batch cannot start at latest"),
        ({"kafka.auto.offset.reset": "none"}, "option kafka.auto.offset.reset is not supported"),
        (
            {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "200"}
            | {"kafka.request.timeout.ms": "100"},
            "no broker answers at 127.0.0.1:1",
        ),
    ],
)
def test_a_mistake_is_one_clear_error_before_any_task_runs(
    topics: Topics, topic: str, read: Read, options: dict[str, str], words: str
):
    topics.create(topic)
    with pytest.raises(AnalysisException) as caught:
        read(**{"subscribe": topic, **options}).collect()
    assert words in str(caught.value)


def test_queries_of_one_table_with_other_filters_are_right_also_with_push_down_on(
    topics: Topics, topic: str, read: Read, push_down: None
):
    """Spark keeps the first plan of a reader that takes filters, so ours takes none unless it is asked to."""
    topics.create(topic, 2)
    topics.fill(topic, range(100), partition=lambda index: index % 2)
    table = read(topic)
    zero, few = table.filter("partition = 0"), table.filter("partition = 1 AND offset < 5")
    assert [zero.count(), table.count(), few.count(), zero.union(few).count()] == [50, 100, 5, 55]


def test_filters_are_pushed_down_when_asked(topics: Topics, topic: str, read: Read, push_down: None):
    topics.create(topic, 4)
    topics.fill(topic, range(400), partition=lambda index: index % 4, timestamp_ms=lambda index: 1000 + index)
    table = read(topic, pushFilters="true").filter(
        "partition IN (1, 2) AND offset >= 90 AND timestamp < timestamp_millis(1390)"
    )
    numbers = sorted(int(row.value) for row in table.collect())
    assert numbers == [number for number in range(360, 390) if number % 4 in (1, 2)]
    assert table.rdd.getNumPartitions() == 2


def test_a_broker_that_restarts_in_the_middle_of_a_read_costs_time_only(
    spark: SparkSession, topic: str, skep_fresh_broker: EmbeddedBroker, tmp_path: Path
):
    own = Topics(skep_fresh_broker.bootstrap_servers)
    own.create(topic)
    own.fill(topic, [b"%06d" % number * 20 for number in range(50_000)])
    begun, again = str(tmp_path / "begun"), str(tmp_path / "again")

    def wait_in_the_middle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pathlib
        import time

        for batch in batches:
            pathlib.Path(begun).touch()
            while not pathlib.Path(again).exists():
                time.sleep(0.01)
            yield batch

    options = {"kafka.bootstrap.servers": own.bootstrap, "subscribe": topic, "kafka.fetch.max.bytes": "200000"}
    table = spark.read.format("skep").options(**options).load().select("offset")
    found: list[int] = []
    reading = threading.Thread(
        target=lambda: found.extend(row.offset for row in table.mapInArrow(wait_in_the_middle, "offset long").collect())
    )
    reading.start()
    wait_until(Path(begun).exists, "the first rows are read", 120)
    skep_fresh_broker.kill()
    skep_fresh_broker.restart()
    Path(again).touch()
    reading.join(120)
    assert found == list(range(50_000))
