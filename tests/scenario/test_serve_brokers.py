"""``skep serve --brokers N``: one process group, one log, one Ctrl-C, and nobody left behind."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from skep.cli.serve.serve_command import next_steps
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import wait_until

SERVE = [sys.executable, "-m", "skep.cli.main", "serve"]
PATIENCE_S = 60
CLEAN_STOP_MARKER = ".kafka_cleanshutdown"
CLUSTER_LINE = re.compile(r"^skep: cluster of (\d+) brokers? ready on (\S+), data in (.*), pid \d+$", re.M)


def surroundings() -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("SKEP_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(sys.path)}


class Served:
    """A running group of brokers; what it prints and logs goes to files, so that nobody waits for a reader.

    ``within`` is a command that runs the one behind it in its own place: on another machine, as it were.
    """

    def __init__(self, *arguments: object, within: Sequence[str] = ()) -> None:
        self._out, self._log = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*within, *SERVE, *map(str, arguments)],
            env=surroundings(),
            stdout=self._out,
            stderr=self._log,
            start_new_session=True,
        )
        self.children: dict[int, psutil.Process] = {}

    @property
    def printed(self) -> str:
        return os.pread(self._out.fileno(), 1 << 20, 0).decode()

    @property
    def log(self) -> str:
        return os.pread(self._log.fileno(), 1 << 24, 0).decode()

    def wait_until_ready(self) -> "Served":
        wait_until(
            lambda: CLUSTER_LINE.search(self.printed) or self.process.poll() is not None,
            lambda: f"the cluster line is printed: {self.printed}{self.log}",
            PATIENCE_S,
        )
        assert self.process.poll() is None, self.log
        self.children = self.brokers()
        return self

    @property
    def addresses(self) -> list[str]:
        found = CLUSTER_LINE.search(self.printed)
        assert found is not None
        return found[2].split(",")

    def brokers(self) -> dict[int, psutil.Process]:
        """The processes of the brokers by id, as the list of processes shows them."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                names = [re.fullmatch(r"node\.id=(\d+)", argument) for argument in child.cmdline()]
                found |= {int(name[1]): child for name in names if name}
        return found

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_number)
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for child in self.children.values():
            with contextlib.suppress(psutil.Error):
                child.kill()
        self._out.close()
        self._log.close()


@contextlib.contextmanager
def serving(data_dir: Path, brokers: int = 3, *arguments: object) -> Iterator[Served]:
    served = Served("--brokers", brokers, "--data-dir", data_dir, "--listen", "127.0.0.1:0", *arguments)
    try:
        yield served
    finally:
        served.end()


def known_brokers(address: str) -> dict[int, str]:
    with RawClient(address) as client:
        brokers = client.ask(apis.METADATA, 9, topics=[]).brokers
    return {broker.node_id: f"{broker.host}:{broker.port}" for broker in brokers}


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_every_broker_says_that_it_is_ready_and_then_the_cluster_does(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        served.wait_until_ready()
        *singles, cluster = served.printed.removesuffix(next_steps(",".join(served.addresses))).splitlines()
        expected = [
            f"skep: broker {i} ready on {address}, data in {tmp_path}/data/broker-{i}, pid {served.children[i].pid}"
            for i, address in enumerate(served.addresses, 1)
        ]
        assert sorted(singles) == expected
        data = f"data in {tmp_path}/data, pid {served.process.pid}"
        assert cluster == f"skep: cluster of 3 brokers ready on {','.join(served.addresses)}, {data}"
        assert sorted(served.children) == [1, 2, 3]


def test_every_broker_knows_the_others(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        served.wait_until_ready()
        everybody = dict(enumerate(served.addresses, 1))
        for address in served.addresses:
            wait_until(lambda address=address: known_brokers(address) == everybody, f"{address} knows all three")


def test_a_topic_is_on_all_brokers(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        first, *others = served.wait_until_ready().addresses
        wait_until(lambda: len(known_brokers(first)) == 3, "all three are known")
        with RawClient(first) as client:
            body = {"name": "eggs", "num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
            [result] = client.ask(apis.CREATE_TOPICS, 5, topics=[body]).topics
            assert result.error_code.value == 0
        for address in others:
            wait_until(lambda address=address: _isr(address, "eggs") == [1, 2, 3], "all three are in sync")


def _isr(address: str, topic: str) -> list[int]:
    with RawClient(address) as client:
        [row] = client.ask(apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
    return sorted(row.partitions[0].isr_nodes) if row.partitions else []


@pytest.mark.parametrize("to_all", [False, True], ids=["to the parent", "as a terminal sends it"])
def test_one_ctrl_c_is_a_clean_stop_of_all(tmp_path: Path, to_all: bool) -> None:
    with serving(tmp_path / "data") as served:
        served.wait_until_ready()
        if to_all:
            os.killpg(served.process.pid, signal.SIGINT)
            assert served.process.wait(PATIENCE_S) == 0
        else:
            assert served.stop(signal.SIGINT) == 0
        assert all(is_gone(child) for child in served.children.values())
        for i in (1, 2, 3):
            assert (tmp_path / "data" / f"broker-{i}" / CLEAN_STOP_MARKER).exists()
        assert "Traceback" not in served.log
        assert "started again" not in served.log


def test_the_log_is_one_with_the_broker_in_front_of_each_line(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        for i, address in enumerate(served.wait_until_ready().addresses, 1):
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(b"\xff" * 8)
            wait_until(
                lambda i=i: re.search(rf"^\[broker {i}\] .* closed the connection of ", served.log, re.M),
                f"broker {i} logs that it hung up",
            )
        served.stop()
        assert all(re.match(r"\[broker [123]\] |skep: ", line) for line in served.log.splitlines())


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_broker_that_ends_is_said_and_started_again_on_its_port(tmp_path: Path, signal_number: int) -> None:
    with serving(tmp_path / "data") as served:
        address = served.wait_until_ready().addresses[1]
        with RawClient(address) as client:
            client.create_topic("eggs")
        served.children[2].send_signal(signal_number)
        how = "was killed by SIGKILL" if signal_number == signal.SIGKILL else "ended with exit code 0"
        wait_until(lambda: f"skep: broker 2 {how}; restarting it in 1 s\n" in served.log, "it is said")
        wait_until(lambda: served.printed.count(f"skep: broker 2 ready on {address},") == 2, "it is ready again")
        served.children |= served.brokers()
        assert 2 in known_brokers(address)
        assert served.stop() == 0


def test_kill_9_of_the_parent_takes_the_brokers_with_it_also_a_frozen_one(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        served.wait_until_ready()
        served.children[3].suspend()
        served.process.kill()
        served.process.wait()
        for i, child in served.children.items():
            wait_until(lambda child=child: is_gone(child), f"broker {i} is gone")


def test_what_was_written_is_there_after_a_stop_and_a_start(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        leader = served.wait_until_ready().addresses[0]
        with RawClient(leader) as client:
            [result] = client.ask(
                apis.CREATE_TOPICS,
                5,
                topics=[
                    {
                        "name": "eggs",
                        "num_partitions": -1,
                        "replication_factor": -1,
                        "assignments": [{"partition_index": 0, "broker_ids": [1]}],
                        "configs": [],
                    }
                ],
            ).topics
            assert result.error_code.value == 0, result
            client.append("eggs", batch_of(b"egg"))
        assert served.stop() == 0
    with serving(tmp_path / "data") as again:
        leader = again.wait_until_ready().addresses[0]
        with RawClient(leader) as client:
            wait_until(lambda: client.list_offset("eggs", -1).offset == 1, "the record is there")


# Why it cannot start.


def failed(*arguments: object) -> list[str]:
    """The lines on standard error that are not the log of a broker."""
    ran = subprocess.run(
        [*SERVE, *map(str, arguments)], env=surroundings(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 2, ran.stderr
    assert "ready on 127.0.0.1:0" not in ran.stdout
    assert "cluster of" not in ran.stdout
    return [line for line in ran.stderr.splitlines() if not line.startswith("[broker ")]


def test_a_port_that_is_taken_is_told_with_the_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lines = failed("--brokers", 2, "--data-dir", tmp_path / "data", "--listen", f"127.0.0.1:{port - 1}")
    # The port before it may happen to be taken too.
    assert (
        f"skep: broker 2: cannot listen on 127.0.0.1:{port}: address already in use; choose another with --listen"
        in lines
    )
    assert not (tmp_path / "data").exists(), "what a failed start made is removed"


def test_a_bad_option_is_told_once(tmp_path: Path) -> None:
    lines = failed("--brokers", 3, "--data-dir", tmp_path / "data", "--set", "num.partition=3")
    assert lines == ["skep: num.partition: there is no such option; did you mean num.partitions?"]
    assert not (tmp_path / "data").exists()


def test_one_broker_and_several_do_not_take_each_others_directory(tmp_path: Path) -> None:
    with serving(tmp_path / "several", 1) as served:
        served.wait_until_ready()
        assert served.stop() == 0
    lines = failed("--data-dir", tmp_path / "several", "--listen", "127.0.0.1:0")
    assert lines == [f"skep: {tmp_path}/several has the data of several brokers; start them with --brokers"]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / ".lock").touch()
    lines = failed("--brokers", 3, "--data-dir", tmp_path / "one", "--listen", "127.0.0.1:0")
    assert lines == [f"skep: {tmp_path}/one has the data of a single broker; use another --data-dir with --brokers"]
