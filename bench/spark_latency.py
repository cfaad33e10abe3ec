"""Row spark-latency: a record into an idle stream, until a consumer has it from the topic that the stream writes to.

The trigger is of 0 seconds: as soon as a micro-batch is done, Spark looks for the next (every 10 ms while there is
nothing, ``spark.sql.streaming.pollingDelay``). There is no bar; what is asked for is where the time goes, so the parts
that Spark reports of its micro-batches (``durationMs``) stand beside it. The reference is the same record read from the
topic it was produced to, without Spark.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.peers import create_topic
from bench.row import Row, percentile, say
from bench.spark_session import session
from skep.testing import EmbeddedBroker

NAMES = ("spark-latency", "spark-latency-once")
SCALABLE = True

RECORDS = 100
WARM_UP = 20
LONGEST_PAUSE_S = 0.2
GIVE_UP_S = 120.0
PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")

Latency = tuple[list[float], dict[str, float]]
"""Milliseconds of each record, and the median of each part of a micro-batch."""


def measure(scale: float = 1.0) -> Iterator[Row]:
    records = max(int(RECORDS * scale), 10)
    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "direct")
        direct = _latencies(servers, "direct", "direct", records)
        say(f"without Spark: {_text(direct)}")
        for name, delivery in zip(NAMES, ("at-least-once", "exactly-once"), strict=True):
            latencies, parts = _through_spark(servers, delivery, records)
            say(f"{delivery}: {_text(latencies)}; {parts}")
            yield Row(
                name,
                f"one record through an idle stream to a topic, {delivery}, p50; "
                + ", ".join(f"{part} {ms:.0f}" for part, ms in parts.items())
                + " ms",
                None,
                "at most",
                statistics.median(latencies) / 1000,
                _text(latencies),
                f"without Spark {_text(direct)}",
                unit="s",
                details={"ms": [round(one, 1) for one in latencies], "direct_ms": statistics.median(direct), **parts},
            )


def _through_spark(servers: str, delivery: str, records: int) -> Latency:
    source, sink = f"from-{delivery}", f"to-{delivery}"
    for topic in (source, sink):
        create_topic(servers, topic)
    stream = (
        session()
        .readStream.format("skep")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"})
    )
    with tempfile.TemporaryDirectory(prefix="skep-bench-", ignore_cleanup_errors=True) as checkpoint:
        writer = stream.load().select("key", "value").writeStream.format("skep").trigger(processingTime="0 seconds")
        query = writer.options(
            **{
                "kafka.bootstrap.servers": servers,
                "topic": sink,
                "delivery": delivery,
                "checkpointLocation": checkpoint,
            }
        ).start()
        try:
            latencies = _latencies(servers, source, sink, records)
            progress = [one.durationMs for one in query.recentProgress if one.numInputRows > 0]
        finally:
            query.stop()
    return latencies, _medians(progress[-records:])


def _medians(progress: list[dict[str, Any]]) -> dict[str, float]:
    return {part: statistics.median(one.get(part, 0) for one in progress) for part in PARTS}


def _latencies(servers: str, source: str, sink: str, records: int) -> list[float]:
    """Milliseconds from ``produce`` until the record is read from ``sink``, one record at a time."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 4})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    found = []
    try:
        consumer.assign([TopicPartition(sink, 0, 0)])
        for number in range(WARM_UP + records):
            # Not in step with whatever looks for it at intervals.
            time.sleep(random.uniform(0, LONGEST_PAUSE_S))
            begun = time.perf_counter()
            producer.produce(source, b"%d" % number, partition=0)
            producer.poll(0)
            _await(consumer, b"%d" % number)
            found.append((time.perf_counter() - begun) * 1000)
            producer.poll(0)
    finally:
        consumer.close()
    return found[WARM_UP:]


def _await(consumer: Consumer, value: bytes) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up:
        message = consumer.poll(1)
        if message is not None and message.error() is None and message.value() == value:
            return
    raise RuntimeError(f"record {value.decode()} did not come within {GIVE_UP_S:.0f} s")


def _text(latencies: list[float]) -> str:
    return f"p50 {statistics.median(latencies):.0f} ms, p99 {percentile(latencies, 0.99):.0f} ms"
