"""``skep serve`` as an operator runs it: where options come from, the ready line, signals, and refusals in one line."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

SERVE = [sys.executable, "-m", "skep.cli.main", "serve"]


class Serving:
    """A running broker; ``address`` is what its ready line says."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.ready = process.stdout.readline()
        assert " ready on " in self.ready, process.stderr.read() if process.stderr else ""
        self.address = self.ready.split(" ready on ")[1].split(",")[0]

    def option(self, name: str) -> str:
        resource = ConfigResource(ResourceType.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": self.address})
        (future,) = admin.describe_configs([resource]).values()
        value = future.result(30)[name].value
        assert isinstance(value, str)
        return value

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def serving(data_dir: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Serving]:
    command = [*SERVE, "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(env)
    ) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()


def environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    import os

    return {**os.environ, **(extra or {})}


def refused(*arguments: str) -> str:
    """What ``skep serve`` says when it cannot start: one line, exit code 2."""
    result = subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("skep: ")
    return result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly(tmp_path: Path, number: int) -> None:
    with serving(tmp_path / "data") as broker:
        assert broker.ready.count("\n") == 1
        assert broker.stop(number) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    "toml",
    ["num.partitions = 7", '"num.partitions" = 7', "[num]\npartitions = 7", 'num.partitions = "7"'],
)
def test_options_come_from_a_file_in_any_spelling_of_toml(tmp_path: Path, toml: str) -> None:
    (tmp_path / "skep.toml").write_text(toml + "\n")
    with serving(tmp_path / "data", "--config", str(tmp_path / "skep.toml")) as broker:
        assert broker.option("num.partitions") == "7"


def test_the_environment_wins_over_the_file_and_set_over_both(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text(
        "num.partitions = 2\ndefault.replication.factor = 1\nlog.segment.bytes = 5000\nlog.retention.bytes = 1\n"
    )
    env = {"SKEP_NUM_PARTITIONS": "3", "SKEP_LOG_SEGMENT_BYTES": "6000", "SKEP_DISK_CLEAN_RATIO": "0.5"}
    with serving(
        tmp_path / "data", "--config", str(tmp_path / "skep.toml"), "--set", "num.partitions=4", env=env
    ) as broker:
        assert broker.option("num.partitions") == "4"
        assert broker.option("log.segment.bytes") == "6000"
        assert broker.option("log.retention.bytes") == "1"
        assert broker.option("skep.disk.clean.ratio") == "0.5"


def test_clients_are_told_the_advertised_address(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--advertise", "broker.example:1234") as broker:
        assert broker.address == "broker.example:1234"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as broker:
        told = refused("--data-dir", str(tmp_path / "two"), "--listen", broker.address)
    assert told == f"skep: cannot listen on {broker.address}: address already in use\n"


def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    with serving(tmp_path / "data"):
        told = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert told == f"skep: {tmp_path / 'data'}: another broker is using this directory\n"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert str(tmp_path / "file" / "data") in refused("--data-dir", str(tmp_path / "file" / "data"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--set", "num.partition=3"), "did you mean num.partitions?"),
        (("--set", "num.partitions=many"), "num.partitions=many: expected"),
        (("--set", "num.partitions=0"), "num.partitions=0: must be at least 1"),
        (("--set", "num.partitions"), "expected NAME=VALUE"),
        (("--listen", "9092"), "listeners=9092: expected one host:port"),
        (("--listen", "no-such-host.invalid:9092"), "cannot listen on no-such-host.invalid:9092: "),
        (("--config", "/nowhere.toml"), "cannot read /nowhere.toml: No such file"),
    ],
)
def test_a_bad_option_is_named_with_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    told = refused("--data-dir", str(tmp_path / "data"), *arguments)
    assert says in told
    assert "unknown error" not in told


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text("num.partitions 3")
    assert "is not TOML" in refused("--config", str(tmp_path / "skep.toml"))
