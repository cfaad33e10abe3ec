"""Rows of quotas: whether clients of librdkafka keep to their rates over ten seconds, and whether others notice.

The seconds begin with the first byte, so what a client may use at once counts.
"""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import frames
from bench.peers import create_topic
from bench.raw_client import RawClient
from bench.row import Row, percentile
from bench.single import VALUE_BYTES, WARM_UP, Latency
from skep.cli.quotas.quota_admin import alter_quotas
from skep.client.cluster_client import ClusterClient
from skep.testing import EmbeddedBroker

NAMES = ("quota-produce", "quota-consume", "quota-others")

CLIENT_ID = "throttled"
RATE = 2_000_000
MEASURED_S = 10.0
RECORD = bytes(10_000)
TOPIC, FULL = "single-quota", "full"


def measure() -> Iterator[Row]:
    with EmbeddedBroker() as broker:
        address = broker.bootstrap_servers
        for topic in (TOPIC, FULL):
            create_topic(address, topic)
        _fill(address, 3 * int(RATE * MEASURED_S))
        with ClusterClient(address, client_id="bench", timeout_s=30) as client:
            quotas = {"producer_byte_rate": float(RATE), "consumer_byte_rate": float(RATE)}
            alter_quotas(client, {"client-id": CLIENT_ID}, quotas)
        yield _row("quota-produce", "producer", _produced(address, MEASURED_S))
        time.sleep(1)
        yield _row("quota-consume", "consumer", _consumed(address, MEASURED_S))
        yield _others(address)


def _row(name: str, who: str, used: float) -> Row:
    allowed = RATE * MEASURED_S
    return Row(
        name,
        f"bytes of a {who} with a quota, in its first {MEASURED_S:.0f} s, to what the quota allows (or the inverse)",
        1.1,
        "at most",
        max(used / allowed, allowed / used),
        f"{used / 1e6:.2f} MB",
        f"{allowed / 1e6:.2f} MB",
    )


def _fill(address: str, size: int) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for _ in range(size // len(RECORD)):
        while True:
            try:
                producer.produce(FULL, RECORD)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _produced(address: str, seconds: float) -> float:
    """Returns the bytes that the broker has acknowledged after so many seconds."""
    acknowledged = 0

    def delivered(error: object, message: object) -> None:
        nonlocal acknowledged
        acknowledged += len(RECORD) if error is None else 0

    producer = Producer({"bootstrap.servers": address, "client.id": CLIENT_ID, "queue.buffering.max.messages": 100})
    producer.list_topics(TOPIC, timeout=10)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            producer.produce(FULL, RECORD, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    used = acknowledged
    producer.purge()
    producer.flush(10)
    return used


def _consumed(address: str, seconds: float) -> float:
    consumer = Consumer({"bootstrap.servers": address, "client.id": CLIENT_ID, "group.id": CLIENT_ID})
    consumer.list_topics(FULL, timeout=10)
    consumer.assign([TopicPartition(FULL, 0, 0)])
    used, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for message in consumer.consume(100, 0.01):
            used += len(message.value() or b"") if message.error() is None else 0
    consumer.close()
    return used


def _others(address: str) -> Row:
    """p99 of one-record requests of a client without a quota, while a throttled one is at work in another process."""
    request = frames.produce(TOPIC, 0, frames.one_record_batch(VALUE_BYTES))
    context = multiprocessing.get_context("spawn")
    with RawClient(address) as client:
        size = len(client.ask(request))
        client.one_at_a_time([request], WARM_UP, size)
        calm, until = [], time.monotonic() + MEASURED_S
        while time.monotonic() < until:
            calm += client.one_at_a_time([request], 200, size)
        started = context.Event()
        process = context.Process(target=_throttled_producer, args=(address, started), daemon=True)
        process.start()
        started.wait(30)
        beside: list[float] = []
        while process.is_alive():
            beside += client.one_at_a_time([request], 200, size)
        process.join()
    ours, reference = (Latency(percentile(took, 0.5), percentile(took, 0.99)) for took in (beside, calm))
    return Row(
        "quota-others",
        "p99 of one-record produce requests beside a throttled producer, to without it",
        None,
        "at most",
        ours.p99_us / reference.p99_us,
        f"{ours}, the slowest {max(beside) / 1000:.0f} ms",
        f"{reference}, the slowest {max(calm) / 1000:.0f} ms",
    )


def _throttled_producer(address: str, started: Event) -> None:
    started.set()
    _produced(address, MEASURED_S)
