"""Batch reads planned and read in this process, against a real broker and without Spark."""

import datetime
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_skep import DefaultSource
from pyspark_skep.read import range_reader as reading_module
from pyspark_skep.read.batch_reader import BatchReader
from pyspark_skep.read.data_loss import DataLoss
from pyspark_skep.read.lookup import TopicMissing
from pyspark_skep.read.row_schema import arrow_schema
from skep.base.errors import OptionError
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError
from skep.client.list_offsets import EARLIEST, list_offsets
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.waiting import wait_until

Open = Callable[..., BatchReader]


@pytest.fixture
def open_reader(broker: EmbeddedBroker) -> Open:
    def open_reader(topic: str | None = None, **options: str) -> BatchReader:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
        if topic is not None:
            given["subscribe"] = topic
        source = DefaultSource(given)
        return source.reader(source.schema())

    return open_reader


def read_all(reader: BatchReader) -> list[dict[str, Any]]:
    """The rows of every task, each read by a copy as Spark would send it to a worker."""
    rows = []
    for partition in reader.partitions():
        copy, sent = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(sent):
            rows += batch.to_pylist()
    return rows


def values(reader: BatchReader) -> list[int]:
    return [int(row["value"]) for row in read_all(reader)]


def ranges(reader: BatchReader) -> list[tuple[str, int, int, int]]:
    return [(one.range.topic, one.range.partition, one.range.start, one.range.end) for one in reader.partitions()]


def test_rows_have_the_schema_that_spark_expects_to_the_last_detail(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic)
    topics.fill(topic, [b"x", None], timestamp_ms=lambda index: 1700000000123)
    for headers in (False, True):
        reader = open_reader(topic, includeHeaders=str(headers))
        [partition] = reader.partitions()
        [batch] = reader.read(partition)
        assert batch.schema.equals(arrow_schema(headers))
        assert batch.column("topic").to_pylist() == [topic, topic]
        assert batch.column("offset").to_pylist() == [0, 1]
        assert batch.column("value").to_pylist() == [b"x", None]
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1700000000123000] * 2


def test_headers_come_as_spark_has_them(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic)
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topic, b"with", headers=[("a", b"1"), ("a", None)])
    producer.produce(topic, b"without")
    producer.flush()
    rows = read_all(open_reader(topic, includeHeaders="true"))
    assert [row["headers"] for row in rows] == [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None]


def test_a_topic_is_read_from_end_to_end_partition_by_partition(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic, 3)
    topics.fill(topic, range(25_000), partition=lambda index: index % 2)
    rows = read_all(open_reader(topic))
    assert [(row["partition"], row["offset"]) for row in rows] == [(p, o) for p in (0, 1) for o in range(12_500)]
    assert [int(row["value"]) for row in rows] == [*range(0, 25_000, 2), *range(1, 25_000, 2)]


def test_nothing_to_read_is_no_row(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic)
    reader = open_reader(topic)
    assert reader.partitions() == []
    # Spark makes one up for a reader that has none.
    assert list(reader.read(InputPartition(None))) == []


def test_topics_by_pattern_and_partitions_by_name(topics: Topics, topic: str, open_reader: Open):
    for name in (f"{topic}-a", f"{topic}-b", f"{topic}-c2"):
        topics.create(name, 2)
        topics.fill(name, range(4), partition=lambda index: index % 2)
    assert {one[0] for one in ranges(open_reader(subscribePattern=f"{topic}-[ab]"))} == {f"{topic}-a", f"{topic}-b"}
    assert ranges(open_reader(subscribePattern=f"{topic}-c")) == []
    assert ranges(open_reader(assign=f'{{"{topic}-b": [1]}}')) == [(f"{topic}-b", 1, 0, 2)]


def test_offsets_by_partition_choose_where_to_start_and_end(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic, 2)
    topics.fill(topic, range(20), partition=lambda index: index % 2)
    reader = open_reader(
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 3, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 7, "1": -1}}}}',
    )
    assert ranges(reader) == [(topic, 0, 3, 7), (topic, 1, 0, 10)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": '{"T": {"0": 3}}'}, "missing: T-1"),
        ({"startingOffsets": '{"T": {"0": 3, "1": 0, "2": 0}}'}, "not read: T-2"),
        ({"endingOffsets": '{"T": {"0": 3}}'}, "endingOffsets must name exactly the partitions"),
        ({"startingOffsets": '{"T": {"0": 11, "1": 0}}'}, "T-0 ends at 10, but 11 is given"),
        ({"endingOffsets": '{"T": {"0": 11, "1": -1}}'}, "T-0 ends at 10, but 11 is given"),
        (
            {"startingOffsets": '{"T": {"0": 5, "1": 0}}', "endingOffsets": '{"T": {"0": 4, "1": -1}}'},
            "5 of T-0 is after 4",
        ),
        ({"startingTimestamp": "20", "endingTimestamp": "10"}, "is later than endingTimestamp"),
        ({"startingOffsets": '{"T": {"id": "x", "0": 0, "1": 0}}'}, "with the id x"),
        ({"startingTimestamp": "99999999999999"}, "startingOffsetsByTimestampStrategy=latest"),
    ],
)
def test_positions_that_are_not_there_are_refused_before_any_task(
    topics: Topics, topic: str, open_reader: Open, options: dict[str, str], words: str
):
    topics.create(topic, 2)
    topics.fill(topic, range(20), partition=lambda index: index % 2)
    options = {name: text.replace("T", topic) for name, text in options.items()}
    with pytest.raises(OptionError) as caught:
        open_reader(topic, **options).partitions()
    assert words.replace("T-", f"{topic}-") in str(caught.value)


def test_times_choose_where_to_start_and_end(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic, 2)
    topics.fill(topic, range(20), partition=lambda index: index % 2, timestamp_ms=lambda index: 1000 + index)
    assert values(open_reader(topic, startingTimestamp="1015")) == [16, 18, 15, 17, 19]
    assert values(open_reader(topic, endingTimestamp="1003")) == [0, 2, 1]
    by_partition = f'{{"{topic}": {{"0": 1018, "1": 1019}}}}'
    assert values(open_reader(topic, startingOffsetsByTimestamp=by_partition)) == [18, 19]
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert values(open_reader(topic, startingTimestamp="1019", **strategy)) == [19]
    assert values(open_reader(topic, startingTimestamp="5000", **strategy)) == []
    assert len(values(open_reader(topic, endingTimestamp="5000"))) == 20


def test_tasks_are_cut_as_asked_and_rows_stay_the_same(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic, 2)
    topics.fill(topic, range(1000), partition=lambda index: int(index < 100))
    reader = open_reader(topic, minPartitions="5")
    assert ranges(reader) == [(topic, 0, 225 * n, 225 * n + 225) for n in range(4)] + [(topic, 1, 0, 100)]
    assert sorted(values(reader)) == list(range(1000))
    assert len(ranges(open_reader(topic, maxRecordsPerPartition="90"))) == 10 + 2


def test_only_committed_records_are_read_unless_asked_otherwise(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic)
    for name, end in (("a", "commit"), ("b", "abort"), ("c", "open")):
        producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": f"{topic}-{name}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, name.encode())
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
    assert [row["value"] for row in read_all(open_reader(topic))] == [b"a"]
    every = read_all(open_reader(topic, **{"kafka.isolation.level": "read_uncommitted"}))
    assert [row["value"] for row in every] == [b"a", b"b", b"c"]
    producer.abort_transaction(30)


def test_filters_choose_what_is_fetched(topics: Topics, topic: str, open_reader: Open, monkeypatch: pytest.MonkeyPatch):
    """By bytes from the broker: a tenth of the topic is no more than a fifth of its bytes, for batches come whole."""
    topics.create(topic, 2)
    for start in range(0, 20_000, 500):
        topics.fill(
            topic,
            [b"%d" % number * 20 for number in range(start, start + 500)],
            partition=(start // 500) % 2,
            timestamp_ms=lambda index, start=start: 1000 + start + index,
        )
    opened = []

    def remember(*arguments: Any) -> Any:
        opened.append(real(*arguments))
        return opened[-1]

    real = reading_module._open
    monkeypatch.setattr(reading_module, "_open", remember)

    def fetched(*filters: Any) -> tuple[int, int]:
        opened.clear()
        reader = open_reader(topic, pushFilters="true", **{"kafka.fetch.max.bytes": "65536"})
        reader.pushFilters(list(filters))
        rows = read_all(reader)
        return len(rows), sum(one.bytes_fetched for one in opened)

    count, everything = fetched()
    assert count == 20_000
    assert fetched(EqualTo(("topic",), "another")) == (0, 0)
    assert fetched(EqualTo(("partition",), 7)) == (0, 0)
    half = fetched(EqualTo(("partition",), 1))
    assert half[0] == 10_000
    assert half[1] < 0.6 * everything
    few = fetched(EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 500), LessThan(("offset",), 1500))
    assert few[0] == 1000
    assert 0 < few[1] < 0.2 * everything
    moment = datetime.datetime.fromtimestamp((1000 + 18_000) / 1000, datetime.UTC)
    young = fetched(GreaterThanOrEqual(("timestamp",), moment))
    assert young[0] == 2000
    assert 0 < young[1] < 0.2 * everything


def test_records_out_of_order_in_time_are_not_missed_by_a_bound_on_it(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic)
    times = [5000, 9000, 1000, 9500, 2000, 8000]
    topics.fill(topic, range(6), timestamp_ms=lambda index: times[index])
    reader = open_reader(topic, pushFilters="true")
    moment = datetime.datetime.fromtimestamp(8.0, datetime.UTC)
    one = GreaterThanOrEqual(("timestamp",), moment)
    assert reader.pushFilters([one]) == [one]
    rows = [row for row in read_all(reader) if row["timestamp"] >= moment]
    assert [int(row["value"]) for row in rows] == [1, 3, 5]


def test_a_missing_topic_or_partition_is_named(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic)
    with pytest.raises(TopicMissing, match="there is no topic 'no-such'"):
        open_reader(f"{topic},no-such").partitions()
    with pytest.raises(TopicMissing, match=f"there is no partition {topic}-4"):
        open_reader(assign=f'{{"{topic}": [0, 4]}}').partitions()


def test_a_broker_that_is_away_is_an_error_after_the_time_given():
    source = DefaultSource(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
        | {"kafka.default.api.timeout.ms": "300", "kafka.request.timeout.ms": "100"}
    )
    with pytest.raises(ClientError, match=r"no broker answers at 127\.0\.0\.1:1"):
        source.reader(source.schema()).partitions()


def shorten(topics: Topics, topic: str) -> int:
    """Lets the broker's retention take the oldest records; the offset that the log then begins at."""
    topics.create(topic, 1, {"segment.bytes": "16384", "retention.bytes": "32768"})
    for _ in range(20):
        topics.fill(topic, [b"x" * 1000] * 10)
    with ClusterClient(topics.bootstrap) as cluster:
        return wait_until(
            lambda: list_offsets(cluster, {(topic, 0): EARLIEST}, committed=False)[topic, 0],
            "retention takes something",
        )


def test_what_retention_took_is_an_error_or_is_gone_with_a_warning(
    topics: Topics, topic: str, open_reader: Open, caplog: pytest.LogCaptureFixture
):
    start = shorten(topics, topic)
    wanted = f'{{"{topic}": {{"0": 0}}}}'
    with pytest.raises(DataLoss, match=f"{topic}-0 is to be read from offset 0 and begins at"):
        open_reader(topic, startingOffsets=wanted).partitions()
    rows = read_all(open_reader(topic, startingOffsets=wanted, failOnDataLoss="false"))
    assert rows[0]["offset"] >= start
    assert rows[-1]["offset"] == 199
    assert "because failOnDataLoss is false" in caplog.text


def test_what_retention_takes_between_planning_and_reading_is_noticed_by_the_task(
    topics: Topics, topic: str, open_reader: Open
):
    shorten(topics, topic)
    for fails in ("true", "false"):
        reader = open_reader(topic, failOnDataLoss=fails)
        [partition] = reader.partitions()
        late = type(partition)(partition.range._replace(start=0))
        if fails == "true":
            with pytest.raises(DataLoss, match="is not in its log"):
                list(reader.read(late))
        else:
            last = list(reader.read(late))[-1].column("offset")[-1].as_py()
            assert last == 199


def test_a_topic_that_is_deleted_or_recreated_under_a_read_is_noticed(topics: Topics, topic: str, open_reader: Open):
    topics.create(topic)
    topics.fill(topic, range(10))
    strict, lenient = open_reader(topic), open_reader(topic, failOnDataLoss="false")
    [partition] = strict.partitions()
    topics.delete(topic)
    with pytest.raises(DataLoss, match="was deleted"):
        list(strict.read(partition))
    assert list(lenient.read(partition)) == []
    topics.create(topic)
    topics.fill(topic, range(10))
    with pytest.raises(DataLoss, match="deleted and created again"):
        list(strict.read(partition))
    assert list(lenient.read(partition)) == []


def test_another_schema_than_that_of_rows_is_refused(broker: EmbeddedBroker):
    source = DefaultSource({"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"})
    with pytest.raises(OptionError, match="do not give a schema"):
        source.reader(StructType([StructField("value", StringType())]))
