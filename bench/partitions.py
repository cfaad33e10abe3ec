"""Row append: what an append costs the broker with 1, 100 and 1,000 partitions that are written in turn.

The row is measured over the wire: one-record produce requests, pipelined on one connection, each to the next
partition. Beside it stand two costs that it contains: the same append to ``skep.storage``'s logs in process, and the
bare ``pwritev`` of the same bytes to as many files, whose own growth is the kernel's.

All in CPU time, the broker's or our own, for nothing here waits for the disk. Every partition has been written to
before the clock starts: making its files is the price of a partition, not of an append.
"""

import contextlib
import functools
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator

from bench import frames
from bench.peers import apart, cpu_seconds, create_topic
from bench.raw_client import RawClient
from bench.row import Row, spread, take_turns
from skep.base.clock import SystemClock
from skep.base.config.topic_config import TopicConfig
from skep.base.files.os_files import OsFiles
from skep.base.ids import LeaderEpoch, TopicPartition
from skep.records.batch import PREFIX_SIZE, check_produced
from skep.storage.directory.log_directory import LogDirectory
from skep.testing import EmbeddedBroker

NAMES = ("append",)

COUNTS = (1, 100, 1000)
APPENDS = 30_000
VALUE_BYTES = 100
MAX_OPEN_FILES = 10_000

Costs = dict[str, list[float]]
"""Microseconds of each round, by the number of partitions."""


def measure() -> Iterator[Row]:
    batch = frames.one_record_batch(VALUE_BYTES)
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as path:
        bare = _take_turns("pwritev", functools.partial(_bare_writes, os.path.join(path, "bare"), batch))
        in_process = _take_turns("log", functools.partial(_appends_in_process, os.path.join(path, "logs"), batch))
    wire = _over_the_wire(batch)
    best = [min(runs) for runs in wire.values()]
    yield Row(
        "append",
        "CPU of a one-record produce request with 1, 100 and 1,000 partitions, the dearest to the cheapest",
        1.3,
        "at most",
        max(best) / min(best),
        f"{_three(wire)} us",
        f"of it log {_three(in_process)}, bare pwritev {_three(bare)}",
        details={
            name: {count: spread(runs) for count, runs in costs.items()}
            for name, costs in (("wire", wire), ("log", in_process), ("pwritev", bare))
        },
    )


def _three(costs: Costs) -> str:
    return " / ".join(f"{min(runs):.1f}" for runs in costs.values())


def _take_turns(what: str, cost: Callable[[int], float]) -> Costs:
    turns = {f"{count}": functools.partial(cost, count) for count in COUNTS}
    return take_turns(turns, lambda us: f"{us:.1f} us ({what})")


def _over_the_wire(batch: bytes) -> Costs:
    with EmbeddedBroker() as broker, RawClient(broker.bootstrap_servers) as client:
        topics: dict[int, list[bytes]] = {}
        for count in COUNTS:
            # Names of one length, so that every request has one size.
            topic = f"append-{count:04d}"
            create_topic(broker.bootstrap_servers, topic, count)
            topics[count] = [frames.produce(topic, partition, batch) for partition in range(count)]
            for request in topics[count]:
                frames.produced_offset(client.ask(request))
        answer_size = len(client.ask(topics[1][0]))

        def cost(count: int) -> float:
            cpu = cpu_seconds(broker.pid)
            client.pipelined(topics[count], APPENDS, answer_size)
            return (cpu_seconds(broker.pid) - cpu) / APPENDS * 1e6

        with apart(broker.pid):
            return _take_turns("wire", cost)


def _appends_in_process(path: str, batch: bytes, count: int) -> float:
    header = check_produced(batch, max_message_bytes=1 << 20)
    clock, epoch = SystemClock(), LeaderEpoch(0)
    directory = LogDirectory(OsFiles(MAX_OPEN_FILES), path, clock)
    directory.open()
    now_ms = clock.now_ms()
    names = [TopicPartition(str(uuid.uuid4()), partition) for partition in range(count)]
    logs = [directory.log(name, TopicConfig(), uuid.uuid4()) for name in names]
    for log in logs:
        log.append(batch, header, epoch, now_ms)
    started = time.thread_time()
    for number in range(APPENDS):
        logs[number % count].append(batch, header, epoch, now_ms)
    seconds = time.thread_time() - started
    directory.close()
    return seconds / APPENDS * 1e6


def _bare_writes(path: str, batch: bytes, count: int) -> float:
    """What ``OsFile.append`` asks of the kernel: a prefix of our own and the rest of the batch, at a known position."""
    os.makedirs(path, exist_ok=True)
    prefix, rest = batch[:PREFIX_SIZE], memoryview(batch)[PREFIX_SIZE:]
    with contextlib.ExitStack() as files:
        names = [os.path.join(path, str(uuid.uuid4())) for _ in range(count)]
        descriptors = [files.enter_context(open(name, "wb", buffering=0)).fileno() for name in names]
        for descriptor in descriptors:
            os.pwritev(descriptor, (prefix, rest), 0)
        started = time.thread_time()
        for number in range(APPENDS):
            os.pwritev(descriptors[number % count], (prefix, rest), (number // count + 1) * len(batch))
        return (time.thread_time() - started) / APPENDS * 1e6
