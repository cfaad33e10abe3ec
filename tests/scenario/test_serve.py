"""``skep serve`` as an operator runs it: where options come from, what it says, how it stops, why it cannot start."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from skep.cli.serve.serve_command import next_steps
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of

SERVE = [sys.executable, "-m", "skep.cli.main", "serve"]
PATIENCE_S = 60
BROKER = 4
CLEAN_STOP_MARKER = ".kafka_cleanshutdown"


def surroundings(**variables: str) -> dict[str, str]:
    """The environment, without options of a broker that happen to be in it."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("SKEP_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **variables}


class Served:
    """A running ``skep serve``; its address is the one in the ready line, which is ``said``; ``steps`` follow it."""

    def __init__(self, *arguments: object, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*SERVE, *map(str, arguments)],
            env=surroundings(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        try:
            assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "nothing was said"
            self.said = self.process.stdout.readline()
            assert " ready on " in self.said, self.process.communicate(timeout=PATIENCE_S)[1]
            self.steps = "".join(self.process.stdout.readline() for _ in range(3))
        except BaseException:
            self.end()
            raise
        self.address = self.said.split(" ready on ")[1].split(",")[0]

    def stop(self, signal_number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """The exit code, what else was printed, and the log."""
        self.process.send_signal(signal_number)
        printed, log = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, printed, log

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def serving(data_dir: Path, *arguments: object, **variables: str) -> Iterator[Served]:
    served = Served("--data-dir", data_dir, "--listen", "127.0.0.1:0", *arguments, **variables)
    try:
        yield served
    finally:
        served.end()


def options(served: Served, *names: str) -> list[str]:
    """What the broker itself says they are."""
    with RawClient(served.address) as client:
        resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": list(names)}
        [result] = client.ask(apis.DESCRIBE_CONFIGS, 4, resources=[resource]).results
    found = {config.name: config.value for config in result.configs}
    return [found[name] for name in names]


def told_address(address: str) -> tuple[str, int]:
    with RawClient(address) as client:
        [broker] = client.ask(apis.METADATA, 9, topics=[]).brokers
    return broker.host, broker.port


def refused(*arguments: object, **variables: str) -> str:
    """The one line of a broker that cannot start."""
    ran = subprocess.run(
        [*SERVE, *map(str, arguments)],
        env=surroundings(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert line.startswith("skep: ")
    return line


# Where options come from.


def test_a_file_may_spell_options_dotted_quoted_and_in_tables(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text("""
        num.partitions = 3
        "max.connections" = 77
        auto.create.topics.enable = false
        skep.disk.clean.ratio = 0.5

        [log.retention]
        bytes = "4096"
    """)
    with serving(tmp_path / "data", "--config", tmp_path / "skep.toml") as served:
        names = ["num.partitions", "max.connections", "auto.create.topics.enable", "log.retention.bytes"]
        assert options(served, *names) == ["3", "77", "false", "4096"]
        assert options(served, "skep.disk.clean.ratio") == ["0.5"]


def test_the_environment_spells_options_in_capitals(tmp_path: Path) -> None:
    variables = {
        "SKEP_NUM_PARTITIONS": "5",
        "SKEP_LOG_SEGMENT_BYTES": "1048576",
        "SKEP_DISK_CLEAN_RATIO": "0.6",
        "SKEP_BOOTSTRAP": "not an option of a broker:1",
    }
    with serving(tmp_path / "data", **variables) as served:
        names = ["num.partitions", "log.segment.bytes", "skep.disk.clean.ratio"]
        assert options(served, *names) == ["5", "1048576", "0.6"]


def test_the_file_yields_to_the_environment_and_that_to_set_and_that_to_flags(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text(f"""
        num.partitions = 2
        max.connections = 20
        fetch.max.bytes = 2000
        log.dirs = "{tmp_path / "file"}"
    """)
    environment = {
        "SKEP_MAX_CONNECTIONS": "30",
        "SKEP_FETCH_MAX_BYTES": "3000",
        "SKEP_LOG_DIRS": str(tmp_path / "environment"),
    }
    settings = ["--set", "fetch.max.bytes=4000", "--set", f"log.dirs={tmp_path / 'set'}"]
    with serving(tmp_path / "flag", "--config", tmp_path / "skep.toml", *settings, **environment) as served:
        names = ["num.partitions", "max.connections", "fetch.max.bytes", "log.dirs"]
        assert options(served, *names) == ["2", "30", "4000", str(tmp_path / "flag")]
    assert {path.name for path in tmp_path.iterdir()} == {"flag", "skep.toml"}


def test_options_reach_the_listener_from_anywhere(tmp_path: Path) -> None:
    served = Served("--set", "node.id=7", SKEP_LISTENERS="127.0.0.1:0", SKEP_LOG_DIR=str(tmp_path / "data"))
    try:
        data = f"data in {tmp_path / 'data'}, pid {served.process.pid}"
        assert served.said == f"skep: broker 7 ready on {served.address}, {data}\n"
        assert told_address(served.address) == ("127.0.0.1", int(served.address.rpartition(":")[2]))
    finally:
        served.end()


# What is said, and what clients are told.


def test_port_0_is_a_free_port_of_which_clients_are_told(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as one, serving(tmp_path / "other") as other:
        assert one.address != other.address
        for served in (one, other):
            host, port = told_address(served.address)
            assert f"{host}:{port}" == served.address
            assert port > 0


@pytest.mark.parametrize("spelled", ["broker.example.org:9094", "PLAINTEXT://broker.example.org:9094"])
def test_clients_are_told_the_advertised_address(tmp_path: Path, spelled: str) -> None:
    with serving(tmp_path / "data", "--advertise", spelled) as served:
        assert served.address == "broker.example.org:9094"
        [listening] = [c for c in psutil.Process(served.process.pid).net_connections() if c.status == "LISTEN"]
        assert told_address(f"127.0.0.1:{listening.laddr.port}") == ("broker.example.org", 9094)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_stop(tmp_path: Path, signal_number: int) -> None:
    with serving(tmp_path / "data") as served, RawClient(served.address) as client:
        client.create_topic("eggs")
        client.append("eggs", batch_of(b"egg"))
        assert not (tmp_path / "data" / CLEAN_STOP_MARKER).exists()
        code, printed, log = served.stop(signal_number)
    assert code == 0
    assert served.steps == next_steps(served.address)
    assert printed == "", "nothing else goes to standard output"
    assert "Traceback" not in log
    name = signal.Signals(signal_number).name
    # Others may come between them: on a busy machine, how late the event loop was.
    told = [line.partition(" INFO ")[2] for line in log.splitlines() if " INFO broker 1 " in line]
    assert told[-2:] == [f"broker 1 is stopping: received {name}", "broker 1 has stopped"]
    assert (tmp_path / "data" / CLEAN_STOP_MARKER).exists()
    with serving(tmp_path / "data") as again, RawClient(again.address) as client:
        assert client.list_offset("eggs", -1).offset == 1
        assert "no clean shutdown" not in again.stop()[2]


def test_kill_9_is_no_clean_stop(tmp_path: Path) -> None:
    """The opposite of the test above, which could not fail if the marker were always there."""
    with serving(tmp_path / "data") as served, RawClient(served.address) as client:
        client.create_topic("eggs")
        client.append("eggs", batch_of(b"egg"))
        served.stop(signal.SIGKILL)
    assert not (tmp_path / "data" / CLEAN_STOP_MARKER).exists()
    with serving(tmp_path / "data") as again:
        assert "no clean shutdown" in again.stop()[2]


# Why it cannot start: one line, exit code 2.


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("--data-dir", tmp_path / "new" / "data", "--listen", address)
    assert line == f"skep: cannot listen on {address}: address already in use; choose another with --listen"
    assert not (tmp_path / "new").exists(), "what a failed start made is removed"


def test_a_start_that_fails_changes_nothing_in_a_directory_that_existed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "used") as served, RawClient(served.address) as client:
        client.create_topic("eggs")
        client.append("eggs", batch_of(b"egg"))
        served.stop()
    for name in ("empty", "used"):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            refused("--data-dir", tmp_path / name, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert list((tmp_path / "empty").iterdir()) == []
    with serving(tmp_path / "used") as again, RawClient(again.address) as client:
        assert client.list_offset("eggs", -1).offset == 1


def test_a_relative_data_directory_is_named_by_its_absolute_path(tmp_path: Path) -> None:
    with serving(Path(os.path.relpath(tmp_path / "data"))) as served:
        assert f", data in {tmp_path / 'data'}, pid " in served.said


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", 70 * "a"])
def test_a_host_that_nobody_knows(tmp_path: Path, host: str) -> None:
    line = refused("--data-dir", tmp_path / "data", "--listen", f"{host}:0", "--insecure")
    assert line.startswith(f"skep: cannot listen on {host}:0: ")
    assert "unknown error" not in line


@pytest.mark.parametrize("several", [(), ("--brokers", "2")])
def test_a_broker_that_asks_nobody_listens_to_this_machine_only(tmp_path: Path, several: tuple[str, ...]) -> None:
    line = refused("--data-dir", tmp_path / "data", "--listen", "0.0.0.0:0", *several)
    assert "PLAINTEXT on 0.0.0.0:0 would let everybody who reaches it read, write and delete everything" in line
    assert "--insecure" in line


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    line = refused("--data-dir", tmp_path / "data", "--listen", "192.0.2.1:9092", "--insecure")
    assert line == "skep: cannot listen on 192.0.2.1:9092: cannot assign requested address"


@pytest.mark.parametrize("address", ["9092", "127.0.0.1", "127.0.0.1:many", "127.0.0.1:65536", "SSL:127.0.0.1/0"])
@pytest.mark.parametrize(("flag", "option"), [("--listen", "listeners"), ("--advertise", "advertised.listeners")])
def test_what_is_no_address(tmp_path: Path, flag: str, option: str, address: str) -> None:
    line = refused("--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", flag, address)
    assert line.startswith(f"skep: {option}={address}: expected host:port")


def test_a_data_directory_that_another_broker_has(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        line = refused("--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0")
        assert line == f"skep: {tmp_path / 'data'}: another broker is using this directory"
        assert told_address(served.address)


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        line = refused("--data-dir", path, "--listen", "127.0.0.1:0")
        assert line == f"skep: data directory {path}: a file is in the way; choose another directory with --data-dir"


def test_a_data_directory_that_cannot_be_written_to() -> None:
    """Of all that is there on every Linux, /proc is what even root cannot write to."""
    line = refused("--data-dir", "/proc/self", "--listen", "127.0.0.1:0")
    assert line.startswith("skep: data directory /proc/self")


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("num.partition=4", "num.partition: there is no such option; did you mean num.partitions?"),
        ("num.partitions=many", "num.partitions=many: expected a 32-bit number"),
        ("num.partitions=0", "num.partitions=0: must be at least 1"),
        ("auto.create.topics.enable=yes", "auto.create.topics.enable=yes: expected true or false"),
        ("log.retention.hours=long", "log.retention.hours=long: expected a number"),
        ("num.partitions", "--set num.partitions: expected NAME=VALUE"),
    ],
)
def test_an_option_that_is_none_or_cannot_be(tmp_path: Path, setting: str, complaint: str) -> None:
    line = refused("--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", "--set", setting)
    assert line == f"skep: {complaint}"
    assert not (tmp_path / "data").exists(), "nothing is made before the options are known to be good"


def test_a_bad_value_in_the_environment(tmp_path: Path) -> None:
    line = refused("--data-dir", tmp_path / "data", SKEP_NUM_PARTITIONS="few")
    assert line == "skep: num.partitions=few: expected a 32-bit number (SKEP_NUM_PARTITIONS)"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"num.partitions = ", "is not TOML: "),
        (b"num.partitions = 1\nnum.partitions = 2", "is not TOML: "),
        (b"\xff\xfe", "is not TOML: "),
        (b"num.partition = 4", "num.partition: there is no such option; did you mean num.partitions?"),
        (b"[num.partitions]\nmany = 4", "num.partitions.many: there is no such option"),
        (b"num.partitions = 1.5", "num.partitions=1.5: expected a 32-bit number"),
        (b"num.partitions = [1, 2]", "num.partitions=1,2: expected a 32-bit number"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "skep.toml"
    file.write_bytes(content)
    line = refused("--data-dir", tmp_path / "data", "--config", file)
    assert complaint in line
    assert str(file) in line


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    line = refused("--data-dir", tmp_path / "data", "--config", tmp_path / name)
    assert line.startswith(f"skep: cannot read {tmp_path / name}: ")


@pytest.mark.parametrize("arguments", [["--no-such-flag"], ["--set"], ["stray"]])
def test_a_command_line_that_cannot_be_meant(arguments: list[Any]) -> None:
    ran = subprocess.run([*SERVE, *arguments], env=surroundings(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert "Traceback" not in ran.stderr


def test_a_later_source_wins_also_under_another_name_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text("log.retention.ms = 5\n")
    arguments = ("--config", tmp_path / "skep.toml", "--set", "log.retention.hours=2")
    with serving(tmp_path / "data", *arguments) as served:
        assert options(served, "log.retention.ms") == ["7200000"]


def test_a_first_user_is_there_before_clients_are(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame\n")
    first = ("--user", "admin", "--password-file", tmp_path / "password")
    with serving(tmp_path / "data", *first) as served:
        with RawClient(served.address) as client:
            described = client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
        _, printed, log = served.stop()
    assert [(row.user, len(row.credential_infos)) for row in described.results] == [("admin", 2)]
    assert "created user admin" in log
    assert "sesame" not in printed + log
    # A user that exists keeps its password, and the file is not needed any more.
    (tmp_path / "password").unlink()
    with serving(tmp_path / "data", *first) as served:
        assert "created user" not in served.stop()[2]


def test_a_first_user_without_a_password_is_refused(tmp_path: Path) -> None:
    complaint = refused("--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", "--user", "admin")
    assert complaint.startswith("skep: skep.first.user (--user) and skep.first.user.password.file")
