"""The one Spark session of a run, and how a query in it is timed.

A session takes ten seconds and more to start, and its first queries pay for what the JVM and the Python workers load
and compile. So all rows share one, and each query is run once before it is measured.
"""

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from bench.row import say, take_turns

HERE = Path(__file__).parents[1]
CORES = 2
KILOBYTE = 1024
_PEAK = "VmHWM:"
_RESET_PEAK = "5"
_BUSY_S = 0.03


@functools.cache
def session(jars: str = "") -> SparkSession:
    """Python workers run this interpreter, and can import the sources of ``bench.spark_sources``.

    ``jars`` (paths with commas between them) are for the JVM, so they count in the first call only.
    """
    begun = time.perf_counter()
    paths = [str(HERE), str(HERE / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("skep-bench")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", f"{CORES}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    say(f"a Spark session, {time.perf_counter() - begun:.0f} s")
    return spark


def read_topic(bootstrap: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    return session().read.format("skep").options(**options).load()


def into_nothing(load: Callable[[], DataFrame]) -> float:
    """Seconds to plan it, compute every row and drop them: Spark's noop sink.

    The frame is loaded anew, as by a program that runs once: Spark keeps what it planned with a frame.
    """
    begun = time.perf_counter()
    load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def into_topic(
    load: Callable[[], DataFrame], servers: str, topic: str, *, source: str = "skep", **options: str
) -> float:
    """Seconds to write the keys and values of all rows to a topic, planning included."""
    begun = time.perf_counter()
    writer = load().select("key", "value").write.format(source)
    writer.options(**{"kafka.bootstrap.servers": servers, "topic": topic, **options}).mode("append").save()
    return time.perf_counter() - begun


def turns_after_one(
    runs: Mapping[str, Callable[[], float]], rows: Mapping[str, int] | int, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each run: every run once for nothing, then in turns."""
    for run in runs.values():
        run()
    found = {}
    for name, seconds in take_turns(runs, lambda seconds: f"{seconds:.2f} s", rounds).items():
        found[name] = seconds
        count = rows if isinstance(rows, int) else rows[name]
        say(f"{name}: {rates_text(count, seconds)}")
    return found


def rates_text(rows: int, seconds: Sequence[float]) -> str:
    """``1.83 M rows/s (1.61 to 1.90)``: the median, and all there was."""
    rates = sorted(rows / one / 1e6 for one in seconds)
    return f"{statistics.median(rates):.2f} M rows/s ({rates[0]:.2f} to {rates[-1]:.2f})"


def cpu_seconds_of_all() -> float:
    """Of this process and all below it: the JVM, its Python workers, the broker."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def worker_cpu_seconds() -> dict[int, float]:
    """CPU seconds of each Python worker, whose peak of memory is set back; for ``worker_peaks_mb``."""
    found = {}
    for process in _workers():
        try:
            with open(f"/proc/{process.pid}/clear_refs", "w") as reset:
                reset.write(_RESET_PEAK)
            found[process.pid] = process.cpu_times().user
        except (OSError, psutil.Error):
            continue  # it has ended meanwhile
    return found


def worker_peaks_mb(before: dict[int, float]) -> list[float]:
    """The most resident memory of each worker that has done something since ``before``; others keep what they had."""
    peaks = []
    for process in _workers():
        try:
            if process.cpu_times().user - before.get(process.pid, 0.0) < _BUSY_S:
                continue
            with open(f"/proc/{process.pid}/status") as status:
                [line] = [line for line in status if line.startswith(_PEAK)]
        except (OSError, ValueError, psutil.Error):
            continue
        peaks.append(int(line.split()[1]) * KILOBYTE / 1e6)
    return peaks


def _workers() -> Iterator[psutil.Process]:
    """Children of ``pyspark.daemon``, which is a child of the JVM and forks one for each task at a time."""
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in process.cmdline() and "pyspark.daemon" in process.parent().cmdline():
                yield process
        except psutil.Error:
            continue
