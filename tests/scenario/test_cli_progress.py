"""The bars of ``skep cluster reassign``, ``drain`` and ``elect``: drawn on a terminal, and nowhere else."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of, seconds
from tests.waiting import wait_until

SKEP = [sys.executable, "-m", "skep.cli.main"]
CONTROL = re.compile(rb"[^\n -~\x80-\xff]")
"""What moves a cursor or colours something; a line's end and letters of any script are none of it."""
BAR = b"[^\\n]*" + "━".encode() + b"[^\\n]*"
ERASE_LINE = b"\x1b[2K"
PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, config={"default.replication.factor": "1"}) as running:
        yield running


class Command:
    """``skep`` with its standard error on a terminal or in a pipe; its standard output is always in a pipe.

    A context: whatever goes wrong in it, the command does not outlive it.
    """

    def __init__(self, cluster: EmbeddedCluster, *arguments: object, on_terminal: bool) -> None:
        ours, theirs = os.openpty() if on_terminal else os.pipe()
        inherited = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "TERM", "COLUMNS")}
        settings = {"SKEP_BOOTSTRAP": cluster.bootstrap_servers, "TERM": "xterm", "PYTHONUTF8": "1"}
        self._process = subprocess.Popen(
            [*SKEP, *map(str, arguments)],
            env={**inherited, **settings, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        self.shown = b""
        self._reading = threading.Thread(target=self._read, args=(ours,))
        self._reading.start()

    def _read(self, descriptor: int) -> None:
        try:
            while chunk := os.read(descriptor, 1 << 16):
                self.shown += chunk
        except OSError:
            pass  # a terminal that nobody writes to any more ends so
        finally:
            os.close(descriptor)

    def wait_until_shown(self, pattern: bytes) -> None:
        wait_until(lambda: re.search(pattern, self.shown), lambda: f"{pattern!r} in {self.shown!r}", PATIENCE_S)

    def end(self) -> bytes:
        """Its standard output, when it has ended well."""
        printed, _ = self._process.communicate(timeout=PATIENCE_S)
        self._reading.join()
        assert self._process.returncode == 0, (printed, self.shown)
        return printed

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._reading.join()


def topic_on(cluster: EmbeddedCluster, replicas: list[int]) -> str:
    """A topic of one partition with half a megabyte in it."""
    topic = f"topic-{uuid4().hex[:8]}"
    body = {
        "name": topic,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": replicas}],
        "configs": [],
    }
    with RawClient(cluster.brokers[replicas[0]]) as client:
        [created] = client.ask(apis.CREATE_TOPICS, 7, topics=[body], timeout=seconds(30)).topics
        assert created.error_code.value == 0
        for _ in range(50):
            client.append(topic, batch_of(bytes(10_000)))
    cluster.wait_until_in_sync()
    return topic


def done(cluster: EmbeddedCluster, *arguments: object) -> None:
    with Command(cluster, *arguments, on_terminal=False) as command:
        command.end()


def reassign(cluster: EmbeddedCluster) -> list[object]:
    return ["cluster", "reassign", "--topic", topic_on(cluster, [1]), "--replicas", "2", "--throttle", 1_000]


def drain(cluster: EmbeddedCluster) -> list[object]:
    topic_on(cluster, [3])
    return ["cluster", "drain", 3, "--throttle", 1_000]


def elect(cluster: EmbeddedCluster) -> list[object]:
    topic = topic_on(cluster, [1, 2])
    done(cluster, "cluster", "reassign", "--topic", topic, "--replicas", "2,1")
    return ["cluster", "elect", "--topic", topic]


@pytest.mark.parametrize(
    ("prepare", "told", "result"),
    [
        (reassign, b"moving", b"Moved 1 partition.\n"),
        (drain, b"draining broker 3", b"Moved 1 partition off broker 3; it can be stopped now.\n"),
    ],
    ids=["reassign", "drain"],
)
def test_on_a_terminal_a_bar_shows_how_much_has_moved_and_goes_at_the_end(
    cluster: EmbeddedCluster, prepare: Callable[[EmbeddedCluster], list[object]], told: bytes, result: bytes
) -> None:
    with Command(cluster, *prepare(cluster), on_terminal=True) as command:
        # The copy would take minutes; when the bar has been seen, it may go as fast as it can.
        command.wait_until_shown(told + b", 1 replica to copy" + BAR + b"0/1")
        done(cluster, "cluster", "reassign", "--throttle", 0)
        assert command.end() == result
    assert command.shown.rstrip().endswith(ERASE_LINE), command.shown[-200:]


def test_on_a_terminal_a_bar_shows_how_many_leaders_are_elected(cluster: EmbeddedCluster) -> None:
    with Command(cluster, *elect(cluster), on_terminal=True) as command:
        assert command.end() == b"Elected the leaders of 1 partition.\n"
    assert re.search(b"electing" + BAR + b"[01]/1", command.shown), command.shown
    assert command.shown.rstrip().endswith(ERASE_LINE), command.shown


@pytest.mark.parametrize("prepare", [reassign, drain, elect])
def test_without_a_terminal_nothing_is_drawn_and_there_is_no_control_character(
    cluster: EmbeddedCluster, prepare: Callable[[EmbeddedCluster], list[object]]
) -> None:
    arguments = prepare(cluster)
    if "--throttle" in arguments:
        arguments[-1] = 200_000  # so that there is something to wait for, and not for long
    with Command(cluster, *arguments, on_terminal=False) as command:
        printed = command.end()
    assert command.shown == b""
    assert printed.count(b"\n") == 1
    assert not CONTROL.search(printed)
