"""``skep.write_arrow``: what others read is what the table has, where Kafka's own clients would have put it."""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka.partitioner.default import murmur2

import skep
from skep.base.errors import ErrorCode, KafkaError
from skep.client.admin import create_topic
from skep.client.arrow.arrow_writer import WriteResult
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError, RowRefused, TimedOut
from skep.client.produce.producer import Producer as ColumnProducer
from skep.client.produce.record_layout import RecordLayout
from skep.client.produce.row_writer import RowWriter
from skep.client.produce.transactions import list_open_transactions
from skep.records.columnar import RecordTooLarge
from skep.testing import EmbeddedBroker

PARTITIONS = 5
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WHEN = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)


@pytest.fixture
def where(skep_broker: EmbeddedBroker) -> str:
    return skep_broker.bootstrap_servers


@pytest.fixture
def made(where: str, topic: str) -> str:
    """The topic, with some partitions."""
    return make(where, topic)


def make(where: str, topic: str, partitions: int = PARTITIONS, **configs: str) -> str:
    with ClusterClient(where) as cluster:
        create_topic(cluster, topic, partitions, {name.replace("_", "."): text for name, text in configs.items()})
    return topic


def consumed(where: str, topic: str, count: int, partitions: int = PARTITIONS) -> list[Message]:
    """What librdkafka reads from the topic, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": where, "group.id": uuid.uuid4().hex, "check.crcs": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[Message] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), 30)
        assert messages, f"{len(found)} of {count} came"
        for message in messages:
            assert message.error() is None
        found += messages
    consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def shares_of(result: WriteResult, topic: str) -> dict[int, int]:
    return {partition: written.count for (name, partition), written in result.partitions.items() if name == topic}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_every_row_in_every_codec(where: str, made: str, compression: str) -> None:
    table = pa.table(
        {
            "key": pa.array([b"k", None, b"", b"k"], pa.binary()),
            "value": pa.array([b"v" * 500, b"", None, b"\0\xff"], pa.binary()),
            "headers": pa.array([[("a", b"1"), ("a", None)], [], None, [("é", b"")]], HEADERS),
            "timestamp": pa.array([WHEN + timedelta(seconds=second) for second in range(4)], pa.timestamp("us", "UTC")),
            "partition": pa.array([2, 2, 2, 2], pa.int32()),
        }
    )
    result = skep.write_arrow(where, made, table, compression=compression)
    assert result == (4, {(made, 2): (0, 3, 4)})
    messages = consumed(where, made, 4)
    assert [message.key() for message in messages] == [b"k", None, b"", b"k"]
    assert [message.value() for message in messages] == [b"v" * 500, b"", None, b"\0\xff"]
    assert [message.headers() or [] for message in messages] == [[("a", b"1"), ("a", None)], [], [], [("é", b"")]]
    first_ms = round(WHEN.timestamp() * 1000)
    assert [message.timestamp()[1] - first_ms for message in messages] == [0, 1000, 2000, 3000]


def test_keys_go_where_kafkas_clients_put_them(where: str, made: str, topic: str) -> None:
    keys = [uuid.uuid4().bytes[: length % 17] for length in range(300)]
    skep.write_arrow(where, made, pa.table({"key": keys, "value": keys}))
    ours = {message.key(): message.partition() for message in consumed(where, made, 300)}
    assert len(set(ours.values())) == PARTITIONS

    theirs = make(where, f"{topic}-librdkafka")
    producer = Producer({"bootstrap.servers": where, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, b"", key)
    producer.flush()
    assert ours == {message.key(): message.partition() for message in consumed(where, theirs, 300)}
    assert ours == {key: (murmur2(key) & 0x7FFF_FFFF) % PARTITIONS for key in keys}


def test_rows_without_a_key_are_spread_and_rows_of_a_partition_keep_their_order(where: str, made: str) -> None:
    count = 50_000
    table = pa.table({"value": [b"%08d" % number for number in range(count)]})
    result = skep.write_arrow(where, made, iter(table.to_batches(max_chunksize=777)))
    assert result.rows == count
    shares = shares_of(result, made)
    assert len(shares) == PARTITIONS
    assert sum(shares.values()) == count
    read = skep.read_arrow(where, made)
    assert sorted(read["value"].to_pylist()) == table["value"].to_pylist()
    for partition in range(PARTITIONS):
        values = read.filter(pc.equal(read["partition"], partition))["value"].to_pylist()
        assert values == sorted(values)


def test_each_row_can_name_its_topic_and_its_partition(where: str, made: str, topic: str) -> None:
    other = make(where, f"{topic}-other", 1)
    count = 1000
    table = pa.table(
        {
            "key": [b"%d" % number for number in range(count)],
            "value": [b"%d" % number for number in range(count)],
            "topic": [made if number % 3 else other for number in range(count)],
            "partition": pa.array([0 if number % 2 else None for number in range(count)], pa.int32()),
        }
    )
    result = skep.write_arrow(where, None, table)
    assert result.partitions[other, 0].count == len(range(0, count, 3))
    assert [int(message.value()) for message in consumed(where, other, 334, 1)] == list(range(0, count, 3))
    for message in consumed(where, made, 666):
        number = int(message.value())
        assert number % 3
        assert message.partition() == (0 if number % 2 else (murmur2(message.key()) & 0x7FFF_FFFF) % PARTITIONS)


def test_many_partitions_get_their_rows_whole(where: str, topic: str) -> None:
    make(where, topic, 40)
    count = 5_000
    keys = [b"%d" % number for number in range(count)]
    headers = pa.array([[("n", key)] for key in keys], HEADERS)
    skep.write_arrow(where, topic, pa.table({"key": keys, "value": keys[::-1], "headers": headers}))
    messages = consumed(where, topic, count, 40)
    assert Counter(message.key() for message in messages) == Counter(keys)
    for message in messages:
        assert int(message.key()) + int(message.value()) == count - 1
        assert message.headers() == [("n", message.key())]
        assert message.partition() == (murmur2(message.key()) & 0x7FFF_FFFF) % 40


def test_what_was_read_from_one_topic_can_be_written_to_another(where: str, made: str, topic: str) -> None:
    keys = [b"%d" % number for number in range(100)]
    skep.write_arrow(where, made, pa.table({"key": keys, "value": keys}))
    copy = make(where, f"{topic}-copy")
    skep.write_arrow(where, copy, skep.read_batches(where, made, headers=True))
    columns = ["key", "value", "partition", "offset", "timestamp"]
    assert skep.read_arrow(where, copy).select(columns) == skep.read_arrow(where, made).select(columns)


FRAME = {"key": ["a", "b"], "value": ["x", None]}


@pytest.mark.parametrize(
    "data",
    [
        pa.table(FRAME),
        pa.table(FRAME).to_batches()[0],
        pa.table(FRAME).to_reader(),
        pa.table(FRAME).to_batches(),
        [pa.table(FRAME)],
        pd.DataFrame(FRAME),
        pl.DataFrame(FRAME),
    ],
    ids=["table", "batch", "reader", "batches", "tables", "pandas", "polars"],
)
def test_every_kind_of_table_is_taken(where: str, topic: str, data: Any) -> None:
    make(where, topic, 1)
    assert skep.write_arrow(where, topic, data).rows == 2
    assert [(message.key(), message.value()) for message in consumed(where, topic, 2, 1)] == [
        (b"a", b"x"),
        (b"b", None),
    ]


def test_nothing_is_written_of_no_rows(where: str, made: str) -> None:
    for nothing in ([], pa.table({"value": pa.array([], pa.string())})):
        assert skep.write_arrow(where, made, nothing) == (0, {})


def test_columns_can_have_other_names(where: str, made: str) -> None:
    rows = [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bo"}]
    table = pa.table({"who": [row["name"] for row in rows], "json": [json.dumps(row) for row in rows]})
    skep.write_arrow(where, made, table, key="who", value="json")
    assert {message.key().decode(): json.loads(message.value()) for message in consumed(where, made, 2)} == {
        row["name"]: row for row in rows
    }


@pytest.mark.parametrize(
    ("data", "error", "complaint"),
    [
        (pa.table({"value": [1]}), ClientError, "'value' is of type int64"),
        (7, ClientError, "an Arrow table or batches of one are needed, not int"),
        ([1], ClientError, "not int"),
        ([pa.table({"value": ["a"]}), pa.table({"value": [b"a"]})], ClientError, "batch 1 has other columns"),
        (pa.table({"value": ["a", "b"], "partition": [0, PARTITIONS]}), RowRefused, "row 1: topic '.*' has partitions"),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(
    where: str, made: str, data: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        skep.write_arrow(where, made, data)
    assert skep.read_arrow(where, made).num_rows == 0


def test_a_row_without_a_topic_is_named(where: str, made: str) -> None:
    with pytest.raises(RowRefused, match="row 1: it has no topic"):
        skep.write_arrow(where, None, pa.table({"value": ["a", "b"], "topic": [made, None]}))
    with pytest.raises(ClientError, match="a topic is needed"):
        skep.write_arrow(where, None, pa.table({"value": ["a"]}))


def test_a_topic_that_is_not_there_is_said(where: str, topic: str) -> None:
    with pytest.raises(KafkaError, match=topic) as missing:
        skep.write_arrow(where, topic, pa.table({"value": ["a"]}))
    assert missing.value.code is ErrorCode.unknown_topic_or_partition


def test_a_row_that_names_a_topic_that_is_not_there_is_named(where: str, made: str) -> None:
    rows = pa.table({"value": ["a", "b", "c"], "topic": [made, f"{made}-other", f"{made}-other"]})
    with pytest.raises(RowRefused, match=f"row 1: there is no topic '{made}-other': create it first"):
        skep.write_arrow(where, None, rows)


def test_a_compression_that_there_is_not_is_said(where: str, made: str) -> None:
    with pytest.raises(ClientError, match="compression: there is no codec 'brotli', only none, gzip"):
        skep.write_arrow(where, made, pa.table({"value": ["a"]}), compression="brotli")


@pytest.mark.parametrize("partitions", [1, 3, 20])
def test_a_value_that_is_too_large_is_named_by_its_row(where: str, topic: str, partitions: int) -> None:
    make(where, topic, partitions, max_message_bytes="20000")
    values = [b"x" * 100] * 500
    values[321] = b"y" * 20_000
    keys = [b"%d" % number for number in range(500)]
    batches = pa.table({"key": keys, "value": values}).to_batches(max_chunksize=100)
    with pytest.raises(RecordTooLarge) as refused:
        skep.write_arrow(where, topic, batches)
    assert (refused.value.row, refused.value.limit) == (321, 20_000)


def test_a_row_is_counted_from_the_first_one_also_in_a_later_chunk(where: str, made: str) -> None:
    partitions = [0] * 500
    partitions[321] = 99
    table = pa.table({"value": [b"x" * 30] * 500, "partition": partitions})
    with ClusterClient(where) as cluster, ColumnProducer(cluster) as producer:
        writer = RowWriter(cluster, producer, RecordLayout.of(table.schema), made, chunk_bytes=1_000)
        with pytest.raises(RowRefused, match="row 321: topic"):
            writer.write(table.to_batches()[0])


def test_values_of_ten_megabytes_are_written(where: str, topic: str) -> None:
    make(where, topic, 2, max_message_bytes=str(11 << 20))
    values = [bytes([letter]) * (10 << 20) for letter in b"abc"] + [b"small"]
    skep.write_arrow(where, topic, pa.table({"value": values}), compression="none")
    assert sorted(skep.read_arrow(where, topic)["value"].to_pylist()) == sorted(values)


def test_with_a_transactional_id_it_is_all_or_nothing(where: str, made: str, topic: str) -> None:
    def batches(fails: bool) -> Iterator[pa.RecordBatch]:
        for number in range(200):
            if fails and number == 199:
                raise RuntimeError("the source has dried up")
            yield pa.record_batch({"value": [b"%d" % number * 50_000]})

    with pytest.raises(RuntimeError, match="dried up"):
        skep.write_arrow(where, made, batches(fails=True), transactional_id=topic, compression="none")
    with ClusterClient(where) as cluster:
        assert list_open_transactions(cluster, topic) == [], "readers do not wait for the timeout"
    result = skep.write_arrow(where, made, batches(fails=False), transactional_id=topic)
    assert result.rows == 200
    assert skep.read_arrow(where, made).num_rows == 200


def test_a_row_that_is_refused_aborts_the_transaction(where: str, made: str, topic: str) -> None:
    table = pa.table({"value": [b"x" * 900_000] * 30 + [b"y" * 2_000_000]})
    with pytest.raises(RecordTooLarge):
        skep.write_arrow(where, made, table, transactional_id=topic, compression="none")
    assert skep.write_arrow(where, made, table.slice(0, 2), transactional_id=topic).rows == 2
    assert skep.read_arrow(where, made).num_rows == 2
    assert skep.read_arrow(where, made, isolation="read_uncommitted").num_rows > 2


def test_the_time_that_is_given_is_also_that_for_finding_the_cluster() -> None:
    with pytest.raises(TimedOut, match=r"no progress for 0\.2 s: no broker answers at 127\.0\.0\.1:1"):
        skep.write_arrow("127.0.0.1:1", "t", pa.table({"value": ["x"]}), timeout_s=0.2)
