"""Rows ready-empty and ready-1000: from the start of ``skep serve`` to the first answer to a client.

The clock runs from the creation of the process to the end of an ApiVersions answer, so it holds the interpreter, the
imports, the lock, the store, the logs and the port.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from bench import frames
from bench.peers import create_topic
from bench.raw_client import RawClient
from bench.row import Row, spread, take_turns

NAMES = ("ready-empty", "ready-1000")

PARTITIONS = 1000
TOPIC = "starting"
LIMIT_S = 60.0
_READY = b" ready on "


class Serving:
    """``skep serve`` as a person would start it, on a free port."""

    def __init__(self, data_dir: str) -> None:
        command = [sys.executable, "-m", "skep.cli.main", "serve", "--data-dir", data_dir, "--listen", "127.0.0.1:0"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)
        self.address = self._await_ready()

    def _await_ready(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT_S)
        line = self._process.stdout.readline() if readable else b""
        if _READY not in line:
            self._process.kill()
            self._log.seek(0)
            raise RuntimeError(f"skep serve did not start: {self._log.read().decode()}")
        return line.split(_READY)[1].split(b",")[0].decode()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as directory:
        full = os.path.join(directory, "full")
        _fill(full)
        empty = (os.path.join(directory, f"empty-{number}") for number in range(100))
        _seconds_to_answer(next(empty))  # the modules are compiled and in the page cache from here on
        turns = {
            "empty directory": lambda: _seconds_to_answer(next(empty)),
            f"{PARTITIONS} partitions": lambda: _seconds_to_answer(full),
        }
        results = take_turns(turns, lambda seconds: f"{seconds:.2f} s")
    for (what, runs), name, bar in zip(results.items(), NAMES, (1.0, 3.0), strict=True):
        clean = "" if name == "ready-empty" else " after a clean stop"
        yield Row(
            name,
            f"from the start of skep serve to its first answer, {what}{clean}",
            bar,
            "at most",
            min(runs),
            f"{min(runs):.2f} s",
            unit="s",
            details=spread(runs, 3),
        )


def _fill(data_dir: str) -> None:
    """Every partition has a record and is stopped cleanly."""
    broker = Serving(data_dir)
    create_topic(broker.address, TOPIC, PARTITIONS)
    batch = frames.one_record_batch(100)
    with RawClient(broker.address) as client:
        for partition in range(PARTITIONS):
            frames.produced_offset(client.ask(frames.produce(TOPIC, partition, batch)))
    broker.stop()


def _seconds_to_answer(data_dir: str) -> float:
    started = time.perf_counter()
    broker = Serving(data_dir)
    with RawClient(broker.address) as client:
        client.ask(frames.api_versions())
        seconds = time.perf_counter() - started
    broker.stop()
    return seconds
