"""Rows compaction and compaction-latency: one pass over a log of 100-byte records, and what producers notice of it.

The reference for the rate is plain file I/O over the same bytes in the same run: read all, write all, sync. Both have
the page cache. The pass is a broker's, its helper process started for it: from the decision that the log is due to the
new segments in place, as the broker's log says. During a second pass, over another such log, a client writes to a third
topic, one request at a time.

``BENCH_COMPACTION_BYTES`` makes the log smaller than its gigabyte.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from crc32c import crc32c

from bench import frames
from bench.peers import create_topic
from bench.raw_client import RawClient
from bench.row import Row, percentile, say, spread
from skep.records.batch import CRC_END
from skep.records.builder import NewRecord, build_batch
from skep.testing import EmbeddedBroker

NAMES = ("compaction", "compaction-latency")

BYTES = int(os.environ.get("BENCH_COMPACTION_BYTES", 1_000_000_000))
DISTINCT_KEYS = 1_000_000
RECORDS_PER_BATCH = 8_000
KEY_BYTES = 16
VALUE_BYTES = 84
QUIET_REQUESTS = 20_000
ROUNDS = 3
PIECE_BYTES = 8 << 20
OTHER = "other"
TABLES = ("table", "second-table")
OPTIONS = {"log.cleaner.backoff.ms": "100", "log.segment.bytes": str(128 << 20), "log.segment.delete.delay.ms": "0"}

_DONE = re.compile(r"compacted (\d+) bytes to (\d+), (\d+) records to (\d+), up to offset \d+, in ([\d.]+) s")


class Round(NamedTuple):
    compaction_rate: float
    plain_rate: float
    records: int
    records_left: int
    quiet_p99_us: float
    busy_p99_us: float

    def __str__(self) -> str:
        return (
            f"compaction {self.compaction_rate / 1e6:.0f} MB/s, plain I/O {self.plain_rate / 1e6:.0f} MB/s, "
            f"produce p99 {self.quiet_p99_us:.0f} us, meanwhile {self.busy_p99_us:.0f} us"
        )


def measure() -> Iterator[Row]:
    rounds = []
    for number in range(ROUNDS):
        rounds.append(_round(number))
        say(f"{number + 1} of {ROUNDS}: {rounds[-1]}")
    middle = _middle(rounds, lambda one: one.compaction_rate / one.plain_rate)
    yield Row(
        "compaction",
        f"compacting {BYTES / 1e6:,.0f} MB, {middle.records:,} records of 100 bytes to {middle.records_left:,}",
        0.3,
        "at least",
        middle.compaction_rate / middle.plain_rate,
        f"{middle.compaction_rate / 1e6:.0f} MB/s",
        f"{middle.plain_rate / 1e6:.0f} MB/s read and written by plain file I/O",
        details={
            "compaction": spread([one.compaction_rate / 1e6 for one in rounds]),
            "plain": spread([one.plain_rate / 1e6 for one in rounds]),
        },
    )
    middle = _middle(rounds, lambda one: one.busy_p99_us / one.quiet_p99_us)
    yield Row(
        "compaction-latency",
        "p99 of one-record produce requests, one at a time, while that goes on, to the same without",
        3.0,
        "at most",
        middle.busy_p99_us / middle.quiet_p99_us,
        f"{middle.busy_p99_us:.0f} us",
        f"{middle.quiet_p99_us:.0f} us",
        details={
            "quiet": spread([one.quiet_p99_us for one in rounds]),
            "busy": spread([one.busy_p99_us for one in rounds]),
        },
    )


def _middle(rounds: list[Round], ratio: Callable[[Round], float]) -> Round:
    """The round with the median ratio, whose own numbers then stand beside it.

    Not the best one, as in other rows: the two sides of these ratios are measured one after the other, so that a noisy
    second can make a round look better than it was.
    """
    return sorted(rounds, key=ratio)[len(rounds) // 2]


def _round(number: int) -> Round:
    with EmbeddedBroker(options=OPTIONS) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(broker.bootstrap_servers, OTHER)
        # The keys are looked at when a compacted topic is written to; that is not what is measured here.
        for table in TABLES:
            _create(broker, table, "delete")
            for batch in _batches(number):
                frames.produced_offset(client.ask(frames.produce(table, 0, batch)))
        request = frames.produce(OTHER, 0, frames.one_record_batch(100))
        client.ask(request)
        quiet = _latencies(client, request, lambda count: count >= QUIET_REQUESTS)
        plain_rate = _plain_rate(broker.data_dir / f"{TABLES[0]}-0", broker.data_dir / "copy")
        _set_policy(broker, TABLES[0], "compact")
        while not (done := _DONE.search(broker.log)):
            time.sleep(0.05)
        _set_policy(broker, TABLES[1], "compact")
        busy = _latencies(client, request, lambda count: count % 100 == 0 and len(_DONE.findall(broker.log)) == 2)
        before, _, records, left, seconds = done.groups()
        return Round(
            compaction_rate=int(before) / float(seconds),
            plain_rate=plain_rate,
            records=int(records),
            records_left=int(left),
            quiet_p99_us=percentile(quiet, 0.99) * 1e6,
            busy_p99_us=percentile(busy, 0.99) * 1e6,
        )


def _latencies(client: RawClient, request: bytes, is_over: Callable[[int], bool]) -> list[float]:
    seconds: list[float] = []
    while not is_over(len(seconds)) or not seconds:
        begun = time.perf_counter()
        client.ask(request)
        seconds.append(time.perf_counter() - begun)
    return seconds


def _batches(seed: int) -> Iterator[bytes]:
    """Batches with random keys: one is built, and the digits of its keys are then written over."""
    now_ms = time.time_ns() // 1_000_000
    keys = [b"%016d" % (10**15 + n) for n in range(RECORDS_PER_BATCH)]
    template = build_batch([NewRecord(key, bytes(VALUE_BYTES), now_ms) for key in keys])
    places = np.array([template.index(key) for key in keys])[:, None] + np.arange(KEY_BYTES)
    batch = np.frombuffer(bytearray(template), np.uint8)
    random = np.random.default_rng(seed)
    powers = 10 ** np.arange(KEY_BYTES - 1, -1, -1)
    for _ in range(BYTES // len(template)):
        chosen = random.integers(0, DISTINCT_KEYS, RECORDS_PER_BATCH)
        batch[places] = (chosen[:, None] // powers % 10 + ord("0")).astype(np.uint8)
        batch[17:CRC_END] = np.frombuffer(crc32c(batch[CRC_END:].tobytes()).to_bytes(4), np.uint8)
        yield batch.tobytes()


def _plain_rate(directory: Path, copy: Path) -> float:
    """Bytes a second, of reading the log's segments, writing them to another file and syncing that."""
    size = 0
    begun = time.perf_counter()
    with open(copy, "wb", buffering=0) as target:
        for path in sorted(directory.glob("*.log")):
            with open(path, "rb", buffering=0) as source:
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
                    size += len(piece)
        os.fsync(target.fileno())
    seconds = time.perf_counter() - begun
    copy.unlink()
    return size / seconds


def _create(broker: EmbeddedBroker, topic: str, policy: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 4})
    new = NewTopic(topic, 1, 1, config={"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0.01"})
    admin.create_topics([new])[topic].result(timeout=60)


def _set_policy(broker: EmbeddedBroker, topic: str, policy: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 4})
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(timeout=60)
