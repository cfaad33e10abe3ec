"""Rows with Spark: ``format("skep")`` beside Spark's own Kafka connector, and that connector on both brokers.

The rows ``connector-...`` compare the two connectors on one Skep broker: the same topic, the same session, the same
query. Spark's connector writes at least once and knows nothing better, so ``connector-write`` is at least once on both
sides, and ``connector-write-once`` sets our exactly once, the default, beside it. The rows ``connector-on-...`` run
Spark's connector, and with it Kafka's Java client, on a Skep broker and on Apache Kafka.

What is written is made in the JVM (``range`` and two expressions), which favours neither side. The CPU seconds are
those of all processes of the run: the JVM, the Python workers and the brokers.
"""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator

import pyspark
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame

from bench.kafka import connector
from bench.kafka.comparison import KAFKA, SKEP, Comparison, Measurement, Peer
from bench.kafka.nodes import KafkaNodes
from bench.peers import create_topic, delete_topic
from bench.ready_rows import KEY_BYTES, VALUE_BYTES, fill
from bench.row import Row, say
from bench.spark_session import HERE, cpu_seconds_of_all, into_topic
from skep.testing import EmbeddedBroker

ON_SKEP = ("connector-read", "connector-first-read", "connector-write", "connector-write-once")
ON_BOTH = ("connector-on-kafka-read", "connector-on-kafka-write")
NAMES = (*ON_SKEP, *ON_BOTH)

RECORDS = 2_000_000
PARTITIONS = 4
TOPIC = "bench"
WARM_UP = 2
FIRST_READ_TIMEOUT_S = 600.0

_topics = (f"written-{number}" for number in itertools.count())


def measure(names: set[str], rounds: int) -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker())
        # The peers of a row are two formats on one broker, or one format on two brokers.
        servers = {SKEP: broker.bootstrap_servers, KAFKA: broker.bootstrap_servers}
        fill(broker.bootstrap_servers, TOPIC, PARTITIONS, RECORDS)
        yield from _measured(_on_skep(), names, rounds, servers)
        if names & set(ON_BOTH):
            servers[KAFKA] = stack.enter_context(KafkaNodes(1)).bootstrap_servers
            fill(servers[KAFKA], TOPIC, PARTITIONS, RECORDS)
            yield from _measured(_on_both(), names, rounds, servers)


def _measured(
    comparisons: Iterator[Comparison], names: set[str], rounds: int, servers: dict[str, str]
) -> Iterator[Row]:
    peers = {name: Peer(name, address, []) for name, address in servers.items()}
    for comparison in comparisons:
        if comparison.name in names:
            comparison.rounds = rounds
            yield comparison.measure(peers)


def _on_skep() -> Iterator[Comparison]:
    versions = f"Spark {pyspark.__version__} and its connector {connector.VERSION}"
    what = f"{RECORDS:,} records of 100 B from a Skep broker, format('skep') to format('kafka') of {versions}"
    yield Comparison("connector-read", what, lambda peer: _read(peer, peer.name), "more", "rows/s", WARM_UP)
    what = "the first read of a new session, which is started before the clock"
    yield Comparison("connector-first-read", what, _first_read, "less", "s")
    what = f"{RECORDS:,} rows to a Skep broker, both at least once"
    yield Comparison("connector-write", what, lambda peer: _write(peer, peer.name), "more", "rows/s", WARM_UP)
    what = "the same, format('skep') exactly once, format('kafka') at least once"
    yield Comparison("connector-write-once", what, _write_once, "more", "rows/s")


def _on_both() -> Iterator[Comparison]:
    what = "format('kafka') on a Skep broker, to the same on Apache Kafka:"
    yield Comparison(
        "connector-on-kafka-read", f"{what} reading", lambda peer: _read(peer, KAFKA), "more", "rows/s", WARM_UP
    )
    yield Comparison(
        "connector-on-kafka-write", f"{what} writing", lambda peer: _write(peer, KAFKA), "more", "rows/s", WARM_UP
    )


def _read(peer: Peer, source: str) -> Measurement:
    connector.connector_session()
    cpu = cpu_seconds_of_all()
    seconds, count, size = connector.read_seconds(source, peer.bootstrap_servers, TOPIC)
    cpu = cpu_seconds_of_all() - cpu
    _check_read(count, size)
    return Measurement(RECORDS / seconds, cpu)


def _first_read(peer: Peer) -> Measurement:
    command = [sys.executable, "-m", connector.__name__, peer.name, peer.bootstrap_servers, TOPIC]
    done = subprocess.run(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=FIRST_READ_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    _check_read(found["count"], found["size"])
    say(f"{peer.name}: the session started in {found['session_s']:.1f} s")
    return Measurement(found["read_s"])


def _check_read(count: int, size: int) -> None:
    if (count, size) != (RECORDS, RECORDS * VALUE_BYTES):
        raise RuntimeError(f"{count} of {RECORDS} rows were read, with {size} bytes")


def _write_once(peer: Peer) -> Measurement:
    return _write(peer, peer.name, "exactly-once")


def _write(peer: Peer, source: str, delivery: str = "at-least-once") -> Measurement:
    """Into a new topic, which is deleted afterwards."""
    options = {"delivery": delivery} if source == SKEP else {}
    topic = next(_topics)
    connector.connector_session()
    create_topic(peer.bootstrap_servers, topic, PARTITIONS)
    cpu = cpu_seconds_of_all()
    seconds = into_topic(_rows, peer.bootstrap_servers, topic, source=source, **options)
    cpu = cpu_seconds_of_all() - cpu
    if (count := _offsets(peer.bootstrap_servers, topic)) < RECORDS:
        raise RuntimeError(f"{count} of {RECORDS} rows were written")
    delete_topic(peer.bootstrap_servers, topic)
    return Measurement(RECORDS / seconds, cpu)


def _rows() -> DataFrame:
    return (
        connector.connector_session()
        .range(0, RECORDS, 1, PARTITIONS)
        .selectExpr(f"lpad(id, {KEY_BYTES}, '0') AS key", f"lpad(id, {VALUE_BYTES}, 'x') AS value")
    )


def _offsets(servers: str, topic: str) -> int:
    """How many offsets a topic has; transactions use some for their markers."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "log_level": 0})
    try:
        partitions = (TopicPartition(topic, number) for number in range(PARTITIONS))
        return sum(consumer.get_watermark_offsets(one, timeout=60)[1] for one in partitions)
    finally:
        consumer.close()
