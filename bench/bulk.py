"""Rows produce, broker-cpu and consume: a million records of 100 bytes through confluent-kafka.

The reference is the same client against librdkafka's own mock broker, which runs inside the client's process, keeps
nothing and has no network but loopback: what the client can do when the broker costs next to nothing.

The consumer may queue all records ahead. With librdkafka's default of 100,000 it stops fetching for up to a second
whenever its queue is full (``fetch.queue.backoff.ms``), and the row would measure that.
"""

import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench.peers import cpu_seconds, create_topic, own_cpu_seconds
from bench.row import Row, spread, take_turns
from skep.testing import EmbeddedBroker

NAMES = ("produce", "broker-cpu", "consume")

RECORDS = 1_000_000
VALUE = bytes(range(100))
CONSUME_AT_ONCE = 10_000
GIVE_UP_S = 60.0

MOCK = "mock broker"
SKEP_PRODUCE = "skep produce"
SKEP_CONSUME = "skep consume"


class Run(NamedTuple):
    seconds: float
    client_cpu: float
    broker_cpu: float = 0.0

    @property
    def rate(self) -> float:
        return RECORDS / self.seconds


def measure() -> Iterator[Row]:
    with EmbeddedBroker() as broker:
        topics = (f"bulk-{number}" for number in itertools.count())
        written: list[str] = []

        def produce() -> Run:
            written.append(next(topics))
            create_topic(broker.bootstrap_servers, written[-1])
            cpu = cpu_seconds(broker.pid)
            run = produce_all({"bootstrap.servers": broker.bootstrap_servers}, written[-1])
            return run._replace(broker_cpu=cpu_seconds(broker.pid) - cpu)

        def consume() -> Run:
            return consume_all({"bootstrap.servers": broker.bootstrap_servers}, written[-1])

        warm_up(broker.bootstrap_servers)
        turns = {
            MOCK: lambda: produce_all({"test.mock.num.brokers": 1}, "bulk"),
            SKEP_PRODUCE: produce,
            SKEP_CONSUME: consume,
        }
        results = take_turns(turns, lambda run: f"{run.rate:,.0f} records/s")
    yield from _rows(results[MOCK], results[SKEP_PRODUCE], results[SKEP_CONSUME])


def _rows(mock: list[Run], produced: list[Run], consumed: list[Run]) -> Iterator[Row]:
    mock_rates, rates, consume_rates = ([run.rate for run in runs] for runs in (mock, produced, consumed))
    yield Row(
        "produce",
        "1 M records of 100 B, confluent-kafka, acks=all, to librdkafka's mock broker",
        0.9,
        "at least",
        max(rates) / max(mock_rates),
        f"{max(rates):,.0f} records/s",
        f"{max(mock_rates):,.0f} records/s",
        details={"ours": spread(rates), "reference": spread(mock_rates)},
    )
    least = min(produced, key=lambda run: run.broker_cpu / run.client_cpu)
    yield Row(
        "broker-cpu",
        "CPU seconds of the broker for that, to the client's",
        0.4,
        "at most",
        least.broker_cpu / least.client_cpu,
        f"{least.broker_cpu:.2f} s",
        f"{least.client_cpu:.2f} s",
        details={
            "ours": spread([run.broker_cpu for run in produced], 2),
            "reference": spread([run.client_cpu for run in produced], 2),
        },
    )
    yield Row(
        "consume",
        f"the same records, consume({CONSUME_AT_ONCE}), to the rate of producing them",
        1.0,
        "at least",
        max(consume_rates) / max(rates),
        f"{max(consume_rates):,.0f} records/s",
        f"{max(rates):,.0f} records/s",
        details={"ours": spread(consume_rates), "reference": spread(rates)},
    )


def produce_all(where: dict[str, Any], topic: str) -> Run:
    failures: list[KafkaError] = []
    producer = Producer(
        {
            **where,
            "acks": "all",
            "log_level": 4,  # a mock broker announces itself at 5
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": RECORDS,
            "queue.buffering.max.kbytes": 1 << 20,
            "on_delivery": lambda error, _message: failures.append(error),
        }
    )
    # The connection is made and the topic known before the clock starts.
    producer.produce(topic, VALUE, partition=0)
    producer.flush()
    produce = producer.produce
    cpu, started = own_cpu_seconds(), time.perf_counter()
    for _ in range(RECORDS):
        produce(topic, VALUE, partition=0)
    unsent = producer.flush(GIVE_UP_S)
    run = Run(time.perf_counter() - started, own_cpu_seconds() - cpu)
    if unsent or failures:
        raise RuntimeError(f"{unsent} records were not sent, {len(failures)} refused: {failures[:1]}")
    return run


def consume_all(where: dict[str, Any], topic: str, records: int = RECORDS) -> Run:
    consumer = Consumer(
        {
            **where,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 2 * RECORDS,
            "queued.max.messages.kbytes": 1 << 20,
        }
    )
    try:
        cpu, started = own_cpu_seconds(), time.perf_counter()
        consumer.assign([TopicPartition(topic, 0, 0)])
        count = 0
        while count < records:
            messages = consumer.consume(min(CONSUME_AT_ONCE, records - count), timeout=1)
            count += len(messages)
            if time.perf_counter() - started > GIVE_UP_S:
                raise RuntimeError(f"{count} of {records} records came within {GIVE_UP_S:.0f} s")
        return Run(time.perf_counter() - started, own_cpu_seconds() - cpu)
    finally:
        consumer.close()


def warm_up(bootstrap_servers: str) -> None:
    """The broker imports what a request needs when it first comes; that is the row about starting, not this one."""
    create_topic(bootstrap_servers, "warm-up")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce("warm-up", VALUE, partition=0)
    producer.flush()
    consume_all({"bootstrap.servers": bootstrap_servers}, "warm-up", records=1)
