"""Four clients behind one pair of functions: write these records, read those of a partition. Each in its own words.

None of them uses a group, which the broker does not serve: partitions are assigned, positions are the reader's.

confluent-kafka  wants a ``group.id`` even for ``assign``, and has to be told not to commit: on ``close`` it would
                 look for a group coordinator until its session times out, 45 s
kafka-python     ``group_id=None`` is its default and asks for no coordinator
aiokafka         the same
kcat             ``-C`` reads partitions without a group
"""

import asyncio
import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

PATIENCE_S = 30
NO_GROUP = {"group.id": "unused", "enable.auto.commit": False}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Message(NamedTuple):
    """What every client can write and read. kcat gives all messages of a run the same headers and no timestamp."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


HEADERS = (("origin", b"basket"), ("empty", b""))
MESSAGES = [Message(b"key-%d" % n, b"the egg in the basket, number %d " % n * (1 + n % 30), HEADERS) for n in range(60)]


def confluent_producer(bootstrap_servers: str, **options: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, **options})


def confluent_consumer(bootstrap_servers: str, **options: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer({"bootstrap.servers": bootstrap_servers, "check.crcs": True, **NO_GROUP, **options})


def take(consumer: confluent_kafka.Consumer, count: int) -> list[confluent_kafka.Message]:
    """The next ``count`` messages of a confluent consumer."""
    taken: list[confluent_kafka.Message] = []
    while len(taken) < count:
        messages = consumer.consume(count - len(taken), timeout=PATIENCE_S)
        assert messages, f"{len(taken)} of {count} messages came"
        for message in messages:
            assert message.error() is None, message.error()
        taken += messages
    return taken


def write_confluent(bootstrap_servers: str, topic: str, messages: Sequence[Message], codec: str) -> None:
    failures: list[Any] = []
    producer = confluent_producer(bootstrap_servers, **{"compression.type": codec})
    for key, value, headers in messages:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            headers=list(headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def read_confluent(bootstrap_servers: str, topic: str, count: int) -> list[Message]:
    consumer = confluent_consumer(bootstrap_servers)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    taken = take(consumer, count)
    consumer.close()
    return [Message(one.key(), one.value(), tuple(one.headers() or ())) for one in taken]


def write_kafka_python(bootstrap_servers: str, topic: str, messages: Sequence[Message], codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap_servers, compression_type=None if codec == "none" else codec, linger_ms=20
    )
    sent = [producer.send(topic, value, key, headers=list(headers), partition=0) for key, value, headers in messages]
    for future in sent:
        future.get(timeout=PATIENCE_S)
    producer.close()


def read_kafka_python(bootstrap_servers: str, topic: str, count: int) -> list[Message]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_servers, group_id=None, consumer_timeout_ms=PATIENCE_S * 1000
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    read = []
    for record in consumer:
        read.append(Message(record.key, record.value, tuple(record.headers)))
        if len(read) == count:
            break
    consumer.close()
    return read


def write_aiokafka(bootstrap_servers: str, topic: str, messages: Sequence[Message], codec: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, compression_type=None if codec == "none" else codec, linger_ms=20
        )
        async with producer:
            sent = [
                await producer.send(topic, value, key, partition=0, headers=list(headers))
                for key, value, headers in messages
            ]
            await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)

    asyncio.run(write())


def read_aiokafka(bootstrap_servers: str, topic: str, count: int) -> list[Message]:
    async def read() -> list[Message]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers, group_id=None, auto_offset_reset="earliest"
        )
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        async with consumer:
            records = [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in range(count)]
        return [Message(record.key, record.value, tuple(record.headers)) for record in records]

    return asyncio.run(read())


def kcat(bootstrap_servers: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """What kcat prints; AssertionError with its own words when it fails."""
    run = subprocess.run(
        ["kcat", "-b", bootstrap_servers, *arguments], input=stdin, capture_output=True, timeout=2 * PATIENCE_S
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout


def write_kcat(bootstrap_servers: str, topic: str, messages: Sequence[Message], codec: str) -> None:
    headers = [argument for name, value in messages[0].headers for argument in ("-H", f"{name}={value.decode()}")]
    lines = b"".join(b"%s|%s\n" % (key, value) for key, value, _ in messages)
    # Lingering makes large batches: librdkafka leaves one unpacked that would not become smaller.
    options = ("-P", "-t", topic, "-p", "0", "-K", "|", "-z", codec, "-X", "linger.ms=100")
    kcat(bootstrap_servers, *options, *headers, stdin=lines)


def read_kcat(bootstrap_servers: str, topic: str, count: int) -> list[Message]:
    options = ("-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-J", "-q")
    records = [json.loads(line) for line in kcat(bootstrap_servers, "-C", *options).splitlines()]
    return [
        Message(
            record["key"].encode(),
            record["payload"].encode(),
            tuple(zip(record["headers"][::2], (value.encode() for value in record["headers"][1::2]), strict=True)),
        )
        for record in records
    ]


WRITERS: dict[str, Callable[[str, str, Sequence[Message], str], None]] = {
    "confluent-kafka": write_confluent,
    "kafka-python": write_kafka_python,
    "aiokafka": write_aiokafka,
    "kcat": write_kcat,
}
READERS: dict[str, Callable[[str, str, int], list[Message]]] = {
    "confluent-kafka": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
    "kcat": read_kcat,
}
