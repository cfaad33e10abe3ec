"""Rows ready-empty, ready-1000 and ready-groups: from the start of ``skep serve`` to the first answer to a client.

The clock runs from the creation of the process to the end of an ApiVersions answer, so it holds the interpreter, the
imports, the lock, the store, the logs and the port. For ready-groups it runs on until all groups can be listed.
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
from skep.wire import apis

NAMES = ("ready-empty", "ready-1000", "ready-groups")

PARTITIONS = 1000
GROUPS = 5000
OFFSETS = 20
"""Of each group."""
LIST_VERSION, COMMIT_VERSION, COORDINATOR_VERSION = 4, 8, 3
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
        full, groups = os.path.join(directory, "full"), os.path.join(directory, "groups")
        _fill(full)
        _fill_groups(groups)
        empty = (os.path.join(directory, f"empty-{number}") for number in range(100))
        _seconds_to_answer(next(empty))  # the modules are compiled and in the page cache from here on
        turns = {
            "empty directory": lambda: _seconds_to_answer(next(empty)),
            f"{PARTITIONS} partitions": lambda: _seconds_to_answer(full),
            f"{GROUPS} groups with {GROUPS * OFFSETS} offsets": lambda: _seconds_to_answer(groups, GROUPS),
        }
        results = take_turns(turns, lambda seconds: f"{seconds:.2f} s")
    for (what, runs), name, bar in zip(results.items(), NAMES, (1.0, 3.0, 5.0), strict=True):
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


def _fill_groups(data_dir: str) -> None:
    broker = Serving(data_dir)
    create_topic(broker.address, TOPIC, OFFSETS)
    with RawClient(broker.address) as client:
        client.ask(frames.request(apis.FIND_COORDINATOR, COORDINATOR_VERSION, {"key": "any"}))
        for number in range(GROUPS):
            client.ask(_commit(f"group-{number}"))
    broker.stop()


def _commit(group: str) -> bytes:
    partitions = [{"partition_index": n, "committed_offset": n, "committed_metadata": ""} for n in range(OFFSETS)]
    body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    return frames.request(
        apis.OFFSET_COMMIT, COMMIT_VERSION, {**body, "topics": [{"name": TOPIC, "partitions": partitions}]}
    )


def _seconds_to_answer(data_dir: str, groups: int = 0) -> float:
    started = time.perf_counter()
    broker = Serving(data_dir)
    with RawClient(broker.address) as client:
        client.ask(frames.api_versions())
        while groups and _listed(client) != groups:
            time.sleep(0.01)
        seconds = time.perf_counter() - started
    broker.stop()
    return seconds


def _listed(client: RawClient) -> int:
    """How many groups there are; 0 while they are being loaded."""
    answer = client.ask(frames.request(apis.LIST_GROUPS, LIST_VERSION, {}))
    return len(frames.body(apis.LIST_GROUPS, LIST_VERSION, answer).groups)
