"""Columns against librdkafka through a broker: what it writes is read into columns, what columns write it reads."""

import contextlib
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from skep.records.columnar import Decoder, RecordColumns, encode_batches, partitions_of_keys
from skep.records.compression import Codec
from skep.records.producer_identity import ProducerIdentity
from tests.compat.clients import CODECS, PATIENCE_S, confluent_consumer, confluent_producer, take
from tests.raw_client import RawClient
from tests.raw_requests import Want

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]

ROWS: list[Row] = [
    (b"key", b"value", 1_700_000_000_000, [("trace", b"\x00\xff"), ("nothing", None), ("empty", b"")]),
    (None, b"no key", 1_700_000_000_007, None),
    (b"tombstone", None, 1_699_999_999_000, None),
    (b"", b"", 1_700_000_000_008, [("naïve", b"1"), ("naïve", b"2")]),
    *[(b"key-%d" % n, b"the egg in the basket " * (n % 40), 1_700_000_001_000 + n, None) for n in range(300)],
]


@pytest.fixture
def client(servers: str) -> Iterator[RawClient]:
    with RawClient(servers) as client:
        yield client


def fetched(client: RawClient, topic: str, *, committed: bool) -> list[dict[str, Any]]:
    """The topic's only partition by Fetch and the decoder."""
    rows: list[dict[str, Any]] = []
    offset = 0
    while True:
        answer = client.fetch_one(Want(topic, 0, offset), isolation_level=int(committed))
        aborted = [(int(one.producer_id), one.first_offset) for one in answer.aborted_transactions or ()]
        decoder = Decoder(
            bytes(answer.records or b""), start=offset, aborted=aborted, committed=committed, headers=True, max_rows=100
        )
        for batch in decoder:
            batch.validate(full=True)
            rows += batch.to_pylist()
        if decoder.next_offset == offset:
            return rows
        offset = decoder.next_offset


def as_rows(found: list[dict[str, Any]]) -> list[Row]:
    return [
        (
            one["key"],
            one["value"],
            round(one["timestamp"].timestamp() * 1000),
            None if one["headers"] is None else [(header["key"], header["value"]) for header in one["headers"]],
        )
        for one in found
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_writes_is_read_into_columns(client: RawClient, servers: str, topic: str, codec: str):
    client.create_topic(topic)
    producer = confluent_producer(servers, **{"compression.type": codec})
    for key, value, timestamp, headers in ROWS:
        producer.produce(topic, value, key, partition=0, timestamp=timestamp, headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    found = fetched(client, topic, committed=False)
    assert as_rows(found) == ROWS
    assert [one["offset"] for one in found] == list(range(len(ROWS)))
    assert {one["timestampType"] for one in found} == {0}


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_columns_write(client: RawClient, servers: str, topic: str, codec: str):
    client.create_topic(topic)
    keys, values, times, headers = zip(*ROWS, strict=True)
    dicts = [pairs and [{"key": name, "value": value} for name, value in pairs] for pairs in headers]
    columns = RecordColumns(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.large_binary()),
        pa.array(dicts, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        np.array(times),
    )
    producer = ProducerIdentity(client.new_producer_id(), 0, False)
    batches = list(
        encode_batches(
            columns, None, codec=Codec.named(codec), max_batch_bytes=30_000, producer=producer, base_sequence=0
        )
    )
    assert len(batches) > 1
    # Each is acknowledged, so the broker has found sequences without a gap.
    assert [client.append(topic, batch.data) for batch in batches] == [batch.rows[0] for batch in batches]
    consumer = confluent_consumer(servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    with contextlib.closing(consumer):
        messages = take(consumer, len(ROWS))
    found = [(one.key(), one.value(), one.timestamp()[1], one.headers()) for one in messages]
    assert found == ROWS


def test_of_librdkafkas_transactions_the_aborted_one_is_left_out(client: RawClient, servers: str, topic: str):
    client.create_topic(topic)
    producer = confluent_producer(servers, **{"transactional.id": f"id-of-{topic}"})
    producer.init_transactions(PATIENCE_S)
    for number in range(4):
        producer.begin_transaction()
        for letter in (b"a", b"b"):
            producer.produce(topic, b"%d-%s" % (number, letter), partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    committed = fetched(client, topic, committed=True)
    assert [(one["offset"], one["value"]) for one in committed] == [(0, b"0-a"), (1, b"0-b"), (6, b"2-a"), (7, b"2-b")]
    assert len(fetched(client, topic, committed=False)) == 8


def test_append_time_is_the_brokers_and_says_so(client: RawClient, servers: str, topic: str):
    client.create_topic(topic, message_timestamp_type="LogAppendTime")
    producer = confluent_producer(servers, **{"compression.type": "lz4"})
    for _ in range(3):
        producer.produce(topic, b"v", partition=0, timestamp=5)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_consumer(servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    with contextlib.closing(consumer):
        times = [message.timestamp() for message in take(consumer, 3)]
    assert {kind for kind, _ in times} == {confluent_kafka.TIMESTAMP_LOG_APPEND_TIME}
    found = fetched(client, topic, committed=False)
    assert [one["timestampType"] for one in found] == [1, 1, 1]
    assert [time for _, _, time, _ in as_rows(found)] == [time for _, time in times]


def test_keys_fall_on_the_partitions_that_librdkafkas_murmur2_chooses(client: RawClient, servers: str, topic: str):
    client.create_topic(topic, partitions=7)
    keys = [b"k" * n + bytes([n, 255 - n]) for n in range(100)]
    chosen: dict[bytes, int] = {}
    producer = confluent_producer(servers, partitioner="murmur2")
    for key in keys:
        producer.produce(
            topic, b"v", key, on_delivery=lambda _, message: chosen.update({message.key(): message.partition()})
        )
    assert producer.flush(PATIENCE_S) == 0
    assert partitions_of_keys(pa.array(keys), 7).tolist() == [chosen[key] for key in keys]
