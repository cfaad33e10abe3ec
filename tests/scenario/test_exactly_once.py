"""Exactly once under fire: workers and broker are killed again and again, and every input is reflected once."""

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from skep.testing import EmbeddedBroker
from tests.lengths import times
from tests.raw_client import RawClient
from tests.scenario.exactly_once_worker import INPUT, OFFSET_LOST, OUTPUT, commit_first_offsets
from tests.waiting import PATIENCE_S, wait_until

KILLS = times(12, long=200)
WORKERS = ("cook-1", "cook-2", "cook-3")
PARTITIONS = 3
ROOT = Path(__file__).parents[2]
OPTIONS = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Small, so that the logs of the coordinators and of the topics roll under way.
    "log.segment.bytes": "200000",
}


class Feeder(threading.Thread):
    """Writes numbered eggs, each once (an idempotent producer, which waits while the broker is away)."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._stopping = threading.Event()
        self.failures: list[KafkaError] = []
        self.fed = 0

    def run(self) -> None:
        while not self._stopping.wait(0.01):
            for _ in range(5):
                self._producer.produce(
                    INPUT, b"%d" % self.fed, partition=self.fed % PARTITIONS, on_delivery=self._delivered
                )
                self.fed += 1
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failures.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self.join(90)
        assert not self.is_alive(), "not all inputs could be written"
        assert self.failures == []


class Kitchen:
    """The workers' processes; one that has ended is started again, unless it has lost its offset."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.starts = 0

    def staff(self) -> None:
        for name in WORKERS:
            process = self._processes.get(name)
            if process is None or process.poll() is not None:
                assert process is None or process.returncode != OFFSET_LOST, f"{name} found no offset to continue from"
                self.starts += 1
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "tests.scenario.exactly_once_worker", self._servers, name],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                    stderr=subprocess.DEVNULL,
                )

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def close(self) -> None:
        for name in self._processes:
            self.kill(name)


class Guest:
    """Reads the output as read_committed, from the beginning, on over the deaths of the broker."""

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in range(PARTITIONS)])
        self.seen: Counter[bytes] = Counter()

    def read_on(self) -> int:
        """How many there are, of which some may be the same."""
        for message in self._consumer.consume(10_000, timeout=0.1):
            if message.error() is None:
                self.seen[message.value()] += 1
        return self.seen.total()

    def close(self) -> None:
        self._consumer.close()


@contextlib.contextmanager
def kitchen_of(servers: str) -> Iterator[Kitchen]:
    commit_first_offsets(servers, PARTITIONS)
    kitchen = Kitchen(servers)
    try:
        kitchen.staff()
        yield kitchen
    finally:
        kitchen.close()


def seed() -> int:
    """``SKEP_SEED`` repeats the choices of an earlier run, as far as the machine allows."""
    number = int(os.environ.get("SKEP_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SKEP_SEED={number}")
    return number


@pytest.mark.long
def test_many_deaths_of_workers_and_broker_leave_every_input_reflected_once() -> None:
    chance = random.Random(seed())
    with EmbeddedBroker(options=OPTIONS) as broker:
        servers = broker.bootstrap_servers
        with RawClient(servers) as client:
            client.create_topic(INPUT, PARTITIONS)
            client.create_topic(OUTPUT, PARTITIONS)
        feeder, guest = Feeder(servers), Guest(servers)
        feeder.start()
        with contextlib.closing(guest), kitchen_of(servers) as kitchen:
            for number in range(KILLS):
                before = guest.seen.total()
                if number % 5 == 0:
                    wait_until(lambda before=before: kitchen.staff() or guest.read_on() > before, "more to be boiled")
                # Not waiting for a condition, but choosing the moment of death.
                threading.Event().wait(chance.random() * 0.8)
                if number % 3 == 2:
                    broker.kill()
                    broker.start()
                else:
                    kitchen.kill(chance.choice(WORKERS))
                kitchen.staff()
            feeder.stop()
            wait_until(lambda: kitchen.staff() or guest.read_on() >= feeder.fed, "all to be boiled", 5 * PATIENCE_S)
            guest.read_on()
        expected = Counter(b"boiled-%d" % number for number in range(feeder.fed))
        assert guest.seen - expected == Counter(), "something is there twice"
        assert expected - guest.seen == Counter(), "something is missing"
        assert "Traceback" not in broker.log
        print(f"{feeder.fed} inputs, {kitchen.starts} starts of workers, {KILLS} deaths")
