"""Rows lookup-offset and lookup-time: finding a place in a log of 10 thousand and in one of 10 million records.

In process, on ``skep.storage``'s log: over a socket the network's p99 would drown both. In CPU time: everything lies in
the page cache, and whoever else wants the processor would otherwise be the p99. Both logs have the same batches of 100
records and the same options, so only their length differs; the large one has about 1 GB.
"""

import functools
import random
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator

from bench.row import Row, percentile, say, spread, take_turns
from skep.base.clock import SystemClock
from skep.base.config.topic_config import TopicConfig
from skep.base.files.os_files import OsFiles
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import crc_of, read_header
from skep.records.builder import NewRecord, build_batch
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log

NAMES = ("lookup-offset", "lookup-time")

SMALL, LARGE = 10_000, 10_000_000
RECORDS_PER_BATCH = 100
VALUE_BYTES = 90
LOOKUPS = 5_000
# Far less than the small log has: a read that ends with the log need not look for its end.
FETCH_BYTES = 1 << 16
EPOCH = LeaderEpoch(0)

_TIMES = struct.Struct(">qq")
_TIMES_POSITION = 27
_CRC = struct.Struct(">I")
_CRC_POSITION = 17


def measure() -> Iterator[Row]:
    clock = SystemClock()
    # One record a millisecond, ending now: a log may not hold times that lie ahead.
    first_ms = clock.now_ms() - LARGE
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as path:
        directory = LogDirectory(OsFiles(), path, clock)
        directory.open()
        logs = {
            f"{count:,} records": _filled(directory, f"lookup-{count}", count, first_ms) for count in (SMALL, LARGE)
        }
        yield _row("lookup-offset", "a read at a random offset", logs, _read_at)
        yield _row(
            "lookup-time", "a random time to its first record", logs, lambda log, o: _find_time(log, o, first_ms)
        )
        directory.close()


def _filled(directory: LogDirectory, topic: str, count: int, first_ms: int) -> Log:
    log = directory.log(TopicPartition(topic, 0), TopicConfig(), uuid.uuid4())
    template = bytearray(build_batch(NewRecord(None, bytes(VALUE_BYTES), n) for n in range(RECORDS_PER_BATCH)))
    for number in range(count // RECORDS_PER_BATCH):
        base_ms = first_ms + number * RECORDS_PER_BATCH
        _TIMES.pack_into(template, _TIMES_POSITION, base_ms, base_ms + RECORDS_PER_BATCH - 1)
        _CRC.pack_into(template, _CRC_POSITION, crc_of(template))
        log.append(bytes(template), read_header(template), EPOCH, base_ms)
    say(f"{topic}: {log.log_end_offset:,} records, {log.size / 1e6:,.0f} MB, {len(log.segments)} segments")
    return log


def _read_at(log: Log, offset: int) -> None:
    found = log.read(Offset(offset), FETCH_BYTES, up_to=log.log_end_offset, at_least_one=True)
    if found.size == 0:
        raise RuntimeError(f"nothing was found at offset {offset}")


def _find_time(log: Log, offset: int, first_ms: int) -> None:
    found = log.offset_for_timestamp(first_ms + offset, up_to=log.log_end_offset)
    if found is None or found.offset != offset:
        raise RuntimeError(f"the time of offset {offset} gave {found}")


def _row(name: str, what: str, logs: dict[str, Log], look: Callable[[Log, int], None]) -> Row:
    def p99(log: Log) -> float:
        # The same seed for every round: rounds differ by noise alone.
        offsets = random.Random(1).choices(range(log.log_end_offset), k=LOOKUPS)
        took = []
        for offset in offsets:
            started = time.thread_time_ns()
            look(log, offset)
            took.append((time.thread_time_ns() - started) / 1000)
        return percentile(took, 0.99)

    turns = {size: functools.partial(p99, log) for size, log in logs.items()}
    results = take_turns(turns, lambda us: f"p99 {us:.0f} us")
    small, large = (min(runs) for runs in results.values())
    return Row(
        name,
        f"{what} in a log of 10 M records, p99, to one of 10 k",
        2.0,
        "at most",
        large / small,
        f"p99 {large:.0f} us",
        f"p99 {small:.0f} us",
        details={size: spread(runs) for size, runs in results.items()},
    )
