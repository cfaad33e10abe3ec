"""``skep bench``: a quick measurement of produce and consume throughput.

The client runs in this process and is usually the bottleneck, so the result is that of this machine and the cluster
together. The project's own benchmarks, which run beside a reference, are in ``bench/``.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import typer
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Cluster, Properties, cluster_of
from skep.cli.failures import CommandError, reason
from skep.cli.output import Json
from skep.cli.records.line_format import OutgoingRecord
from skep.cli.records.produce_command import AcksOption, CodecOption
from skep.cli.records.sender import Sender
from skep.cli.records.topic_reader import QUICK_FETCHES
from skep.cli.topics import topic_admin

DISTINCT_VALUES = 997
PROGRESS_EVERY = 10_000
READ_TIMEOUT_S = 30.0

Progress = Callable[[int], None]


class Measured(NamedTuple):
    work: str
    records: int
    bytes: int
    seconds: float


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    records: Annotated[int, typer.Option("--records", "-n", min=1, metavar="N", help="Number of records.")] = 500_000,
    size: Annotated[
        int, typer.Option("--size", "-s", min=1, metavar="BYTES", help="Size of each value, in bytes.")
    ] = 100,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, metavar="N", help="Number of partitions.")
    ] = 1,
    acks: AcksOption = "all",
    codec: CodecOption = "none",
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Measure produce and consume throughput, with a topic that is created and deleted by the command.

    The client in this command is usually the bottleneck, so the result is that of this machine and the cluster
    together. The values are hexadecimal digits, which compress to about half their size.

    \b
    Examples:
      skep bench
      skep bench --records 1000000 --size 1000 --codec lz4 --partitions 4
      skep bench --acks 1 --json
    """
    cluster = cluster_of(bootstrap, properties)
    settings = {"acks": acks, "compression.type": codec, "linger.ms": 5}
    with _own_topic(cluster, partitions) as topic, output.progress(shown=not json) as progress:
        writing = progress.add_task("writing", total=records)
        written = _write(cluster, topic, records, size, settings, lambda count: progress.advance(writing, count))
        reading = progress.add_task("reading", total=records)
        read = _read(cluster, topic, partitions, records, lambda count: progress.advance(reading, count))
    _show([written, read], json)


@contextmanager
def _own_topic(cluster: Cluster, partitions: int) -> Iterator[str]:
    name = f"skep-bench-{secrets.token_hex(4)}"
    topic_admin.create_topic(cluster, name, partitions=partitions)
    try:
        yield name
    finally:
        topic_admin.delete_topics(cluster, [name])


def _write(
    cluster: Cluster, topic: str, records: int, size: int, settings: dict[str, Any], advance: Progress
) -> Measured:
    digits = random.Random(0)
    values = [digits.randbytes(size).hex()[:size].encode() for _ in range(min(records, DISTINCT_VALUES))]
    outgoing = [OutgoingRecord(None, value, []) for value in values]
    with Sender(cluster, topic, settings) as sender:
        started = time.perf_counter()
        for number in range(records):
            sender.send(outgoing[number % DISTINCT_VALUES])
            if number % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                advance(PROGRESS_EVERY)
        sender.flush()
        return Measured("write", records, records * size, time.perf_counter() - started)


def _read(cluster: Cluster, topic: str, partitions: int, records: int, advance: Progress) -> Measured:
    consumer = Consumer(
        cluster.config({"auto.offset.reset": "earliest", **QUICK_FETCHES})
        | {"group.id": "skep-bench", "enable.auto.commit": False}
    )
    try:
        started = last = time.perf_counter()
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        count = size = 0
        while count < records:
            messages = consumer.consume(PROGRESS_EVERY, timeout=0.1)
            _raise_first_error(messages)
            count += len(messages)
            size += sum(map(len, messages))
            advance(len(messages))
            now = time.perf_counter()
            last = now if messages else last
            if now - last > READ_TIMEOUT_S:
                raise CommandError(f"read {count} of {records} records, then none for {READ_TIMEOUT_S:.0f} s")
        return Measured("read", count, size, time.perf_counter() - started)
    finally:
        consumer.close()


def _raise_first_error(messages: list[Message]) -> None:
    error: KafkaError | None = next((message.error() for message in messages if message.error() is not None), None)
    if error is not None:
        raise CommandError(f"reading failed: {reason(error)}")


def _show(measured: list[Measured], json: bool) -> None:
    if json:
        output.document(
            [
                {**row._asdict(), "records_per_s": row.records / row.seconds, "bytes_per_s": row.bytes / row.seconds}
                for row in measured
            ]
        )
        return
    output.table(
        ("", "records", "seconds", "records/s", "throughput"),
        (
            (
                row.work,
                f"{row.records:,}",
                f"{row.seconds:.2f}",
                f"{row.records / row.seconds:,.0f}",
                output.rate(row.bytes, row.seconds, "B"),
            )
            for row in measured
        ),
        right=("records", "seconds", "records/s", "throughput"),
    )
