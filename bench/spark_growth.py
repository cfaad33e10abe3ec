"""Rows spark-growth-partitions, spark-growth-rows and spark-worker-memory: what more of everything costs.

Rows a second into noop for 4 M rows in 1, 4 and 16 partitions, and for 1 M to 16 M rows in 4 partitions. A query has a
price that does not depend on the rows: Spark plans it in a Python process, and starts tasks. It is timed with a
topic of one row; the row about rows is measured with it and, beside that, stated without it.

The memory is the most that any Python worker had resident in any of these queries: VmHWM, set back before each.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial

from bench.ready_rows import fill
from bench.row import Row, spread
from bench.spark_session import into_nothing, read_topic, session, turns_after_one, worker_cpu_seconds, worker_peaks_mb
from skep.testing import EmbeddedBroker

NAMES = ("spark-growth-partitions", "spark-growth-rows", "spark-worker-memory")
SCALABLE = True

PARTITION_COUNTS = (1, 4, 16)
RECORDS = 4_000_000
RECORD_COUNTS = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)
PARTITIONS = 4
ROUNDS = 5
FIXED = "one-row"


def measure(scale: float = 1.0) -> Iterator[Row]:
    session()
    sizes = {_partitions_name(count): (count, _scaled(RECORDS, scale)) for count in PARTITION_COUNTS}
    sizes |= {_rows_name(count): (PARTITIONS, _scaled(count, scale)) for count in RECORD_COUNTS}
    sizes[FIXED] = (1, 1)
    peaks: dict[str, list[float]] = {name: [] for name in sizes}
    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        for name, (partitions, records) in sizes.items():
            fill(servers, name, partitions, records)

        def run(name: str) -> float:
            before = worker_cpu_seconds()
            seconds = into_nothing(partial(read_topic, servers, name))
            peaks[name].append(max(worker_peaks_mb(before), default=0.0))
            return seconds

        runs: dict[str, Callable[[], float]] = {name: partial(run, name) for name in sizes}
        counts = {name: count for name, (_, count) in sizes.items()}
        seconds = turns_after_one(runs, counts, ROUNDS)
    yield _partitions_row(seconds, counts)
    yield _rows_row(seconds, counts)
    yield _memory_row(peaks)


def _partitions_row(seconds: dict[str, list[float]], records: dict[str, int]) -> Row:
    names = [_partitions_name(count) for count in PARTITION_COUNTS]
    rates = [records[name] / statistics.median(seconds[name]) for name in names]
    return Row(
        "spark-growth-partitions",
        f"{records[names[0]]:,} rows in {_listed(PARTITION_COUNTS)} partitions, fastest to slowest; medians",
        1.3,
        "at most",
        max(rates) / min(rates),
        " / ".join(f"{rate / 1e6:.2f}" for rate in rates) + " M rows/s",
        details={
            "partitions": PARTITION_COUNTS,
            "rates": [[records[name] / one for one in seconds[name]] for name in names],
        },
    )


def _rows_row(seconds: dict[str, list[float]], records: dict[str, int]) -> Row:
    names = [_rows_name(count) for count in RECORD_COUNTS]
    fixed = statistics.median(seconds[FIXED])
    middle = [statistics.median(seconds[name]) for name in names]
    rates = [records[name] / one for name, one in zip(names, middle, strict=True)]
    beyond = [records[name] / max(one - fixed, 1e-3) for name, one in zip(names, middle, strict=True)]
    return Row(
        "spark-growth-rows",
        f"{records[names[0]]:,} to {records[names[-1]]:,} rows in {PARTITIONS} partitions; without the "
        f"{fixed:.2f} s of a query of one row {max(beyond) / min(beyond):.2f}",
        1.3,
        "at most",
        max(rates) / min(rates),
        " / ".join(f"{rate / 1e6:.2f}" for rate in rates) + " M rows/s",
        "without that " + " / ".join(f"{rate / 1e6:.2f}" for rate in beyond),
        details={
            "records": [records[name] for name in names],
            "rates": [[records[name] / one for one in seconds[name]] for name in names],
            "fixed_s": spread(seconds[FIXED], 3),
            "without_fixed": max(beyond) / min(beyond),
        },
    )


def _memory_row(peaks: dict[str, list[float]]) -> Row:
    names = [_rows_name(count) for count in RECORD_COUNTS]
    most = [max(peaks[name]) for name in names]
    return Row(
        "spark-worker-memory",
        f"the most that a Python worker had, {RECORD_COUNTS[-1] // RECORD_COUNTS[0]} times the rows to the fewest",
        1.3,
        "at most",
        most[-1] / most[0],
        " / ".join(f"{one:.0f}" for one in most) + " MB",
        f"{PARTITION_COUNTS[-1]} partitions: {max(peaks[_partitions_name(PARTITION_COUNTS[-1])]):.0f} MB",
        details={name: spread(runs) for name, runs in peaks.items()},
    )


def _partitions_name(count: int) -> str:
    return f"partitions-{count}"


def _rows_name(count: int) -> str:
    return f"rows-{count // 1_000_000}M"


def _scaled(records: int, scale: float) -> int:
    return max(int(records * scale) // 16, 1) * 16


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts[:-1])) + f" and {counts[-1]}"
