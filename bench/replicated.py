"""Rows replicated, replicated-latency: the same client, acks=all, into three replicas on three brokers and into one.

Everything shares the processors of one machine: three brokers there do the work of three machines, and each record is
written three times. So the ratio says what replication costs, not what a cluster carries.
"""

import itertools
import time
from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.row import Row, percentile, spread, take_turns
from skep.testing import EmbeddedBroker, EmbeddedCluster

NAMES = ("replicated", "replicated-latency")

RECORDS = 300_000
VALUE = bytes(range(100))
PARTITIONS = 3
SINGLE_REQUESTS = 300
GIVE_UP_S = 120.0


def measure() -> Iterator[Row]:
    with EmbeddedBroker() as broker, EmbeddedCluster(brokers=3) as cluster:
        topics = (f"bench-{number}" for number in itertools.count())
        one, three = broker.bootstrap_servers, cluster.bootstrap_servers
        bulk = take_turns(
            {
                "one broker": lambda: _bulk(one, next(topics), 1),
                "three replicas": lambda: _bulk(three, next(topics), 3),
            },
            lambda rate: f"{rate:,.0f} records/s",
        )
        single = take_turns(
            {
                "one broker, one at a time": lambda: _one_at_a_time(one, next(topics), 1),
                "three replicas, one at a time": lambda: _one_at_a_time(three, next(topics), 3),
            },
            lambda times: f"p50 {percentile(times, 0.5):.2f} ms, p99 {percentile(times, 0.99):.2f} ms",
        )
    alone, copied = bulk["one broker"], bulk["three replicas"]
    yield Row(
        "replicated",
        f"{RECORDS:,} records of 100 B, acks=all, min.insync.replicas=2, three replicas to one",
        0.3,
        "at least",
        max(copied) / max(alone),
        f"{max(copied):,.0f} records/s",
        f"{max(alone):,.0f} records/s",
        details={"ours": spread(copied), "reference": spread(alone)},
    )
    quick, slow = (min(times, key=lambda run: percentile(run, 0.99)) for times in single.values())
    yield Row(
        "replicated-latency",
        "one record at a time, acks=all, p99, three replicas to one",
        None,
        "at most",
        percentile(slow, 0.99) / percentile(quick, 0.99),
        f"p50 {percentile(slow, 0.5):.2f} ms, p99 {percentile(slow, 0.99):.2f} ms",
        f"p50 {percentile(quick, 0.5):.2f} ms, p99 {percentile(quick, 0.99):.2f} ms",
    )


def _create(servers: str, name: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 4})
    config = {"min.insync.replicas": str(min(2, replicas))}
    for future in admin.create_topics([NewTopic(name, PARTITIONS, replicas, config=config)]).values():
        future.result(timeout=60)


def _producer(servers: str, topic: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "log_level": 4,
            "queue.buffering.max.messages": RECORDS,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    # The connections are made and the topic known before the clock starts.
    for partition in range(PARTITIONS):
        producer.produce(topic, VALUE, partition=partition)
    if producer.flush(GIVE_UP_S):
        raise RuntimeError(f"{topic} takes no records")
    return producer


def _bulk(servers: str, topic: str, replicas: int) -> float:
    """Records a second."""
    _create(servers, topic, replicas)
    producer = _producer(servers, topic)
    started = time.perf_counter()
    for number in range(RECORDS):
        producer.produce(topic, VALUE, partition=number % PARTITIONS)
    if producer.flush(GIVE_UP_S):
        raise RuntimeError("not all records were acknowledged")
    return RECORDS / (time.perf_counter() - started)


def _one_at_a_time(servers: str, topic: str, replicas: int) -> list[float]:
    """Milliseconds from send to acknowledgement."""
    _create(servers, topic, replicas)
    producer = _producer(servers, topic)
    times = []
    for number in range(SINGLE_REQUESTS):
        started = time.perf_counter()
        producer.produce(topic, VALUE, partition=number % PARTITIONS)
        producer.flush(GIVE_UP_S)
        times.append((time.perf_counter() - started) * 1000)
    return times
