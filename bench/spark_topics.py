"""Rows spark-read, spark-read-confluent, spark-read-tuples, spark-write, spark-write-once: topics in Spark.

The ceiling of all is a Python source that yields ready Arrow batches of the same columns into the noop sink: what Spark
takes from Python when nothing has to be fetched or decoded. What is written comes from that same source, so a write
pays for reading it, for the way of the rows through the JVM into a second Python worker, and for the broker. How much
of that is Spark's own shows a sink that drops all rows, which is timed beside them.

All take turns, and a ratio is one of medians. The CPU seconds of all processes of the run are in the details: on a
machine that does other things they say more than the clock.
"""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame

from bench.peers import create_topic, delete_topic
from bench.ready_rows import fill
from bench.row import Row, spread
from bench.spark_session import (
    cpu_seconds_of_all,
    into_nothing,
    into_topic,
    rates_text,
    read_topic,
    session,
    turns_after_one,
)
from bench.spark_sources import ConfluentSource, ReadySource
from skep.testing import EmbeddedBroker

NAMES = ("spark-read", "spark-read-confluent", "spark-read-tuples", "spark-write", "spark-write-once")
SCALABLE = True

RECORDS = 4_000_000
PARTITIONS = 4
ROUNDS = 5
TOPIC = "bench"

CEILING, READ = "ready batches", "read"
CONFLUENT, TUPLES = "consume() to Arrow", "consume() to tuples"
DROP, AT_LEAST_ONCE, EXACTLY_ONCE = "write to nothing", "write at least once", "write exactly once"


def measure(scale: float = 1.0) -> Iterator[Row]:
    records = int(RECORDS * scale) // PARTITIONS * PARTITIONS
    spark = session()
    for source in (ReadySource, ConfluentSource):
        spark.dataSource.register(source)
    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        fill(servers, TOPIC, PARTITIONS, records)
        topics = (f"written-{number}" for number in itertools.count())

        def ready() -> DataFrame:
            return spark.read.format(ReadySource.name()).options(parts=PARTITIONS, rows=records).load()

        def confluent(**more: str) -> DataFrame:
            source = spark.read.format(ConfluentSource.name()).options(**more)
            return source.options(parts=PARTITIONS, rows=records, servers=servers, topic=TOPIC).load()

        tuples = functools.partial(confluent, tuples="true")
        ours = functools.partial(read_topic, servers, TOPIC)
        for load in (ready, confluent, tuples, ours):
            if (count := load().count()) != records:
                raise RuntimeError(f"{count} of {records} rows were read")
        runs: dict[str, Callable[[], float]] = {
            CEILING: lambda: into_nothing(ready),
            READ: lambda: into_nothing(ours),
            DROP: lambda: _dropped(ready),
            AT_LEAST_ONCE: lambda: _written(ready, servers, next(topics), "at-least-once"),
            EXACTLY_ONCE: lambda: _written(ready, servers, next(topics), "exactly-once"),
            CONFLUENT: lambda: into_nothing(confluent),
            TUPLES: lambda: into_nothing(tuples),
        }
        cpu: dict[str, list[float]] = {name: [] for name in runs}

        def counted(name: str) -> float:
            before = cpu_seconds_of_all()
            seconds = runs[name]()
            cpu[name].append(cpu_seconds_of_all() - before)
            return seconds

        seconds = turns_after_one({name: functools.partial(counted, name) for name in runs}, records, ROUNDS)
    yield from _rows(seconds, cpu, records)


def _rows(seconds: dict[str, list[float]], cpu: dict[str, list[float]], records: int) -> Iterator[Row]:
    middle = {name: statistics.median(runs) for name, runs in seconds.items()}
    text = {name: rates_text(records, runs) for name, runs in seconds.items()}

    def row(name: str, what: str, bar: float, ours: str, reference: str) -> Row:
        return Row(
            name,
            what,
            bar,
            "at least",
            middle[reference] / middle[ours],
            text[ours],
            text[reference],
            details={one: {**spread(seconds[one], 3), "cpu_s": spread(cpu[one][1:], 2)} for one in (ours, reference)},
        )

    what = f"Spark reads {records:,} records of 100 B into noop, to a source of ready Arrow batches; medians"
    yield row("spark-read", what, 0.6, READ, CEILING)
    what = "the same, to a Python source that makes Arrow batches of what confluent-kafka's consume() gives"
    yield row("spark-read-confluent", what, 4.0, READ, CONFLUENT)
    yield row("spark-read-tuples", "the same, to one that gives Spark a tuple for each record", 4.0, READ, TUPLES)
    dropped = middle[CEILING] / middle[DROP]
    what = f"Spark writes them, at least once, to the ceiling of reading (a sink that drops all: {dropped:.2f})"
    yield row("spark-write", what, 0.35, AT_LEAST_ONCE, CEILING)
    yield row("spark-write-once", "the same, exactly once", 0.3, EXACTLY_ONCE, CEILING)


def _dropped(load: Callable[[], DataFrame]) -> float:
    begun = time.perf_counter()
    load().select("key", "value").write.format(ReadySource.name()).mode("append").save()
    return time.perf_counter() - begun


def _written(load: Callable[[], DataFrame], servers: str, topic: str, delivery: str) -> float:
    """Into a new topic, which is deleted afterwards: all of them would be more than the page cache should hold."""
    create_topic(servers, topic, PARTITIONS)
    seconds = into_topic(load, servers, topic, delivery=delivery)
    delete_topic(servers, topic)
    return seconds
