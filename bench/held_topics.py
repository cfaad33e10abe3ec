"""Rows held-in, held-out and held-memory: a held topic, and what its worker needs for much that waits.

*held-in* counts from the first record that is produced until the worker has all of them in its index. *held-out* is as
many records that are due at one moment: how many a second reach the target, counted until a consumer has the last one.
*held-memory* is the resident memory of the worker with a million waiting records over that with a tenth of them.

``python -m bench.held_topics 10000000`` measures another number of waiting records.
"""

import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.peers import cpu_seconds, resident_mb
from bench.row import Row, say
from skep.testing import EmbeddedBroker
from tests.scenario.held_history import worker_pid

NAMES = ("held-in", "held-out", "held-memory")

HELD, TARGET = "later", "orders"
FEW, MANY = 100_000, 1_000_000
RELEASED = 100_000
VALUE = bytes(100)
DAY_MS = 86_400_000


class Waiting(NamedTuple):
    records: int
    in_per_s: float
    worker_mb: float
    index_mb: float
    out_per_s: float
    cpu_us_in: float
    """Of the worker, for a record."""
    cpu_us_out: float


def measure() -> Iterator[Row]:
    few, many = _run(FEW), _run(MANY)
    yield _row("held-in", f"records a second into the index, {MANY:,} of 100 bytes", many.in_per_s)
    yield _row("held-out", f"records a second released, {RELEASED:,} due at once", many.out_per_s)
    yield Row(
        "held-memory",
        f"the worker's memory, {MANY:,} waiting over {FEW:,}",
        1.5,
        "at most",
        many.worker_mb / few.worker_mb,
        f"{many.worker_mb:.0f} MB",
        f"{few.worker_mb:.0f} MB",
    )


def _row(name: str, what: str, rate: float) -> Row:
    return Row(name, what, None, "at least", rate, f"{rate:,.0f} records/s", unit="records/s")


def _run(count: int) -> Waiting:
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = [NewTopic(TARGET, 1), NewTopic(HELD, 1, config={"skep.held.target": TARGET})]
        for created in admin.create_topics(topics).values():
            created.result()
        begun = time.perf_counter()
        _produce(broker, count, lambda: int(time.time() * 1000) + DAY_MS + random.randrange(300 * DAY_MS), "waits")
        produced = time.perf_counter() - begun
        _wait_until_known(broker, count)
        seconds = time.perf_counter() - begun
        say(f"{count:,} waiting: produced in {produced:.1f} s, known after {seconds:.1f} s")
        pid = worker_pid(broker.pid)
        assert pid is not None
        memory, cpu_in = resident_mb(pid), cpu_seconds(pid)
        index = sum(path.stat().st_size for path in (broker.data_dir / "worker").iterdir()) / 1e6
        out = _release(broker)
        cpu_out = cpu_seconds(pid) - cpu_in
        largest = max(memory, resident_mb(pid))
        found = Waiting(count, count / seconds, largest, index, out, cpu_in / count * 1e6, cpu_out / RELEASED * 1e6)
        say(
            f"{count:,} waiting: {found.in_per_s:,.0f}/s in, {found.out_per_s:,.0f}/s out; worker {memory:.0f} MB, "
            f"then {found.worker_mb:.0f} MB; CPU of the worker for a record {found.cpu_us_in:.0f} us in, "
            f"{found.cpu_us_out:.0f} us in and out; index {index:.0f} MB; broker {resident_mb(broker.pid):.0f} MB"
        )
        return found


def _produce(broker: EmbeddedBroker, count: int, due_ms: Callable[[], int], name: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "delivery.report.only.error": True,
        }
    )
    for number in range(count):
        while True:
            try:
                producer.produce(HELD, VALUE, f"{name} {number}", headers=[("deliver-at", str(due_ms()))])
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(600) == 0


def _wait_until_known(broker: EmbeddedBroker, offset: int) -> None:
    while True:
        for path in (broker.data_dir / "worker").glob("*.held"):
            try:
                database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
                [(known,)] = database.execute("SELECT next_offset FROM about")
                database.close()
                if known >= offset:
                    return
            except (sqlite3.Error, ValueError):
                pass
        time.sleep(0.1)


def _release(broker: EmbeddedBroker) -> float:
    due_ms = int(time.time() * 1000) + 20_000
    _produce(broker, RELEASED, lambda: due_ms, "due")
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TARGET, 0, 0)])
    assert time.time() * 1000 < due_ms, "producing has taken too long"
    left = RELEASED
    while left:
        left -= sum(message.error() is None for message in consumer.consume(10_000, 0.05))
    seconds = time.time() - due_ms / 1000
    consumer.close()
    return RELEASED / seconds


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        _run(int(argument))
