"""Rows memory-idle and memory-busy: resident memory of a broker that does nothing, and of one that has much to hold.

Busy is: 1,000 partitions that were written to, 1,000 connections that each have asked for something, and a fetch and a
produce request served, so that what those import is there.
"""

import contextlib
from collections.abc import Iterator

from bench import frames
from bench.peers import allow_descriptors, create_topic, resident_mb
from bench.raw_client import RawClient
from bench.row import ROUNDS, Row, say, spread
from skep.testing import EmbeddedBroker

NAMES = ("memory-idle", "memory-busy")

PARTITIONS = 1000
CONNECTIONS = 1000
TOPIC = "memory"


def measure() -> Iterator[Row]:
    allow_descriptors(CONNECTIONS + 200)
    idle, busy = [], []
    for number in range(ROUNDS):
        with EmbeddedBroker() as broker:
            idle.append(resident_mb(broker.pid))
            busy.append(_load(broker))
        say(f"{number + 1} of {ROUNDS}: {idle[-1]:.0f} MB idle, {busy[-1]:.0f} MB busy")
    yield _row("memory-idle", "resident memory after the start", 100, idle)
    yield _row("memory-busy", f"with {PARTITIONS:,} partitions and {CONNECTIONS:,} connections", 250, busy)


def _load(broker: EmbeddedBroker) -> float:
    create_topic(broker.bootstrap_servers, TOPIC, PARTITIONS)
    batch = frames.one_record_batch(100)
    with contextlib.ExitStack() as open_connections:
        for number in range(CONNECTIONS):
            client = open_connections.enter_context(RawClient(broker.bootstrap_servers))
            client.ask(frames.api_versions())
            partition = number % PARTITIONS
            frames.produced_offset(client.ask(frames.produce(TOPIC, partition, batch)))
            frames.fetched_records(client.ask(frames.fetch(TOPIC, partition, 0, 1 << 20)))
        return resident_mb(broker.pid)


def _row(name: str, what: str, bar: float, runs: list[float]) -> Row:
    return Row(name, what, bar, "at most", min(runs), f"{min(runs):.0f} MB", unit="MB", details=spread(runs))
