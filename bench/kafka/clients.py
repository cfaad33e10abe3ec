"""What the comparisons do with a peer: produce and consume with confluent-kafka, or ask with raw frames.

Producers are connected, and have their producer id, before the clock starts. What is consumed was written with the same
frames to both, so both logs hold the same batches.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench import frames
from bench.kafka.comparison import Measurement, Peer
from bench.raw_client import RawClient
from skep.records.builder import NewRecord, build_batch

VALUE = bytes(range(100))
GIVE_UP_S = 120.0
CONSUME_AT_ONCE = 10_000
RECORDS_PER_BATCH = 5_000


def create_topic(
    servers: str, name: str, partitions: int = 1, replicas: int = 1, config: Mapping[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topic = NewTopic(name, partitions, replicas, config=dict(config or {}))
    for future in admin.create_topics([topic]).values():
        future.result(timeout=GIVE_UP_S)


def leader_address(servers: str, topic: str) -> str:
    """The broker that leads partition 0, once there is one."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        cluster = admin.list_topics(topic, timeout=10)
        partitions = cluster.topics[topic].partitions
        if partitions and partitions[0].leader in cluster.brokers:
            broker = cluster.brokers[partitions[0].leader]
            return f"{broker.host}:{broker.port}"
        time.sleep(0.05)
    raise RuntimeError(f"nobody leads {topic}")


def produce(
    peer: Peer, topic: str, count: int, *, partitions: int = 1, options: Mapping[str, Any] | None = None
) -> Measurement:
    """Records a second, acks=all."""
    failures: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": peer.bootstrap_servers,
            "acks": "all",
            "log_level": 0,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": count,
            "queue.buffering.max.kbytes": 1 << 21,
            "on_delivery": lambda error, _message: failures.append(error),
            **(options or {}),
        }
    )
    for partition in range(partitions):
        producer.produce(topic, VALUE, partition=partition)
    if producer.flush(GIVE_UP_S):
        raise RuntimeError(f"{topic} takes no records")
    send, cpu, started = producer.produce, peer.cpu_seconds(), time.perf_counter()
    for number in range(count):
        send(topic, VALUE, partition=number % partitions)
    unsent = producer.flush(GIVE_UP_S)
    seconds = time.perf_counter() - started
    if unsent or failures:
        raise RuntimeError(f"{unsent} records were not sent, {len(failures)} refused: {failures[:1]}")
    return Measurement(count / seconds, peer.cpu_seconds() - cpu)


def write_batches(address: str, topic: str, count: int, partition: int = 0) -> None:
    """``count`` records in equal batches; the frames depend on nothing but the arguments."""
    records = [NewRecord(None, VALUE, 1_700_000_000_000 + number) for number in range(RECORDS_PER_BATCH)]
    request = frames.produce(topic, partition, build_batch(records))
    with RawClient(address) as client:
        _first_response_size(client, request)
        for expected in range(RECORDS_PER_BATCH, count, RECORDS_PER_BATCH):
            _check_offset(client, request, expected)


def consume(peer: Peer, topic: str, count: int, partitions: int = 1) -> Measurement:
    """Records a second, from the first offset on.

    The consumer may queue everything. With librdkafka's default it pauses for up to a second when its queue is full.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": peer.bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "log_level": 0,
            "queued.min.messages": 5_000_000,
            "queued.max.messages.kbytes": 1 << 20,
        }
    )
    try:
        # The connection is made before the clock starts.
        consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=GIVE_UP_S)
        cpu, started = peer.cpu_seconds(), time.perf_counter()
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        left = count
        while left:
            left -= len(consumer.consume(min(CONSUME_AT_ONCE, left), timeout=1))
            if time.perf_counter() - started > GIVE_UP_S:
                raise RuntimeError(f"{count - left} of {count} records came within {GIVE_UP_S:.0f} s")
        return Measurement(count / (time.perf_counter() - started), peer.cpu_seconds() - cpu)
    finally:
        consumer.close()


def one_record_request(topic: str) -> bytes:
    return frames.produce(topic, 0, frames.one_record_batch(len(VALUE)))


def pipelined(peer: Peer, address: str, topic: str, count: int) -> Measurement:
    """Requests of one record a second, with a window of them in flight on one connection."""
    request = one_record_request(topic)
    with RawClient(address) as client:
        size = _first_response_size(client, request)
        cpu = peer.cpu_seconds()
        seconds = client.pipelined([request], count, size)
        cpu = peer.cpu_seconds() - cpu
        _check_offset(client, request, 1 + count)
        return Measurement(count / seconds, cpu)


def one_at_a_time(address: str, topic: str, count: int) -> Sequence[float]:
    """Microseconds of each one-record request that is sent when the one before is acknowledged."""
    request = one_record_request(topic)
    with RawClient(address) as client:
        size = _first_response_size(client, request)
        client.one_at_a_time([request], count // 10, size)
        times = client.one_at_a_time([request], count, size)
        _check_offset(client, request, 1 + count // 10 + count)
        return times


def _first_response_size(client: RawClient, request: bytes) -> int:
    """Sends the request until the broker takes it: a new topic is not known everywhere at once."""
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        response = client.ask(request)
        try:
            frames.produced_offset(response)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return len(response)


def _check_offset(client: RawClient, request: bytes, expected: int) -> None:
    """The client only counts bytes; the next offset tells whether every request was an append."""
    offset = frames.produced_offset(client.ask(request))
    if offset != expected:
        raise RuntimeError(f"offset {expected} was due, the broker gave {offset}")
