"""librdkafka as the judge: what its producer writes we read, what we build its consumer reads, under every codec.

Both meet in librdkafka's own mock broker, which keeps batches as bytes and opens none. Its address is inside this
process; Produce and Fetch are packed by hand here, in versions that are plain structs.
"""

import contextlib
import socket
import struct

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from skep.base.ids import Offset
from skep.records.batch import is_intact
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.records.record import Record, batches_in, iterate_records, records_in

PATIENCE_S = 60
PRODUCE, PRODUCE_VERSION = 0, 7
FETCH, FETCH_VERSION = 1, 10

RECORDS = [
    NewRecord(
        None if n % 7 == 0 else b"key-%d" % n,
        None if n % 11 == 0 else b"the egg in the basket number %d " % n * (n % 40),
        1_700_000_000_000 + n * 37 % 1000,
        (("n", b"%d" % n), ("none", None), ("empty", b"")) if n % 3 == 0 else (),
    )
    for n in range(2000)
]
EXPECTED = [Record(Offset(n), r.timestamp, r.key, r.value, tuple(r.headers)) for n, r in enumerate(RECORDS)]


@pytest.fixture(scope="module")
def mock_broker() -> tuple[Producer, str, int]:
    keeper = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    [broker] = keeper.list_topics(timeout=PATIENCE_S).brokers.values()
    return keeper, broker.host, broker.port


def ask(host: str, port: int, api: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih4s", api, version, 1, 4, b"test") + body
    with contextlib.closing(socket.create_connection((host, port), timeout=PATIENCE_S)) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        response = connection.makefile("rb")
        (length,) = struct.unpack(">i", response.read(4))
        return response.read(length)[4:]


def topic_partition_0(topic: str) -> bytes:
    return struct.pack(f">ih{len(topic)}sii", 1, len(topic), topic.encode(), 1, 0)


def produce(host: str, port: int, topic: str, batch: bytes) -> None:
    body = struct.pack(">hhi", -1, -1, 10_000) + topic_partition_0(topic) + struct.pack(">i", len(batch)) + batch
    response = ask(host, port, PRODUCE, PRODUCE_VERSION, body)
    (error,) = struct.unpack_from(">h", response, len(topic_partition_0(topic)))
    assert error == 0


def fetch(host: str, port: int, topic: str, offset: int) -> bytes:
    body = struct.pack(">iiiibii", -1, 100, 1, 1 << 25, 0, 0, -1) + topic_partition_0(topic)
    body += struct.pack(">iqqi", -1, offset, -1, 1 << 25) + struct.pack(">i", 0)
    response = ask(host, port, FETCH, FETCH_VERSION, body)
    position = 10 + len(topic_partition_0(topic))
    error, _, _, _, aborted = struct.unpack_from(">hqqqi", response, position)
    assert error == 0
    position += 30 + max(aborted, 0) * 16
    (size,) = struct.unpack_from(">i", response, position)
    return response[position + 4 : position + 4 + max(size, 0)]


@pytest.mark.parametrize("codec", Codec)
def test_we_read_what_librdkafka_writes(mock_broker: tuple[Producer, str, int], codec: Codec) -> None:
    _, host, port = mock_broker
    topic = f"written-{codec.label}"
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": f"{host}:{port}",
            "compression.type": codec.label,
            "linger.ms": 50,
            "enable.idempotence": True,
        }
    )
    for key, value, timestamp, headers in RECORDS:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            timestamp=timestamp,
            headers=list(headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []

    read: list[Record] = []
    while len(read) < len(RECORDS):
        data = fetch(host, port, topic, len(read))
        assert data
        for header, batch in batches_in(data):
            assert is_intact(batch)
            assert header.codec == codec
            assert header.has_producer_id
            read += iterate_records(batch)
    assert read == EXPECTED


@pytest.mark.parametrize("codec", Codec)
def test_librdkafka_reads_what_we_build(mock_broker: tuple[Producer, str, int], codec: Codec) -> None:
    keeper, host, port = mock_broker
    topic = f"built-{codec.label}"
    keeper.list_topics(topic, timeout=PATIENCE_S)  # the mock creates a topic that is asked for
    for start in range(0, len(RECORDS), 500):
        produce(host, port, topic, build_batch(RECORDS[start : start + 500], codec=codec))
    stored = b"".join(fetch(host, port, topic, start) for start in range(0, len(RECORDS), 500))
    assert {record.offset for record in records_in(stored)} == set(range(len(RECORDS)))

    consumer = Consumer({"bootstrap.servers": f"{host}:{port}", "group.id": "test", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[Record] = []
    while len(read) < len(RECORDS):
        messages = consumer.consume(len(RECORDS) - len(read), timeout=PATIENCE_S)
        assert messages
        for message in messages:
            assert message.error() is None, message.error()
            read.append(
                Record(
                    Offset(message.offset()),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
    consumer.close()
    assert read == EXPECTED
