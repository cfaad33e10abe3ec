"""``skep cluster config``, ``kafka-configs`` and ``skep health`` against a real broker, which logs JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError
from skep.cli.kafka import kafka_configs
from skep.cli.main import app
from tests.waiting import wait_until


class Served:
    def __init__(self, directory: Path, *settings: str) -> None:
        self.log = directory / "log"
        arguments = ["--listen", "127.0.0.1:0", "--data-dir", str(directory / "data"), "--log-format", "json"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "skep.cli.main", "serve", *arguments, *settings],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split(" ready on ")[1].split(",")[0]

    def stop(self) -> list[dict[str, object]]:
        """Returns the lines of the log."""
        self.process.terminate()
        self.process.communicate()
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    broker = Served(tmp_path_factory.mktemp("served"))
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture(autouse=True)
def bootstrap(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", served.address)


def skep(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def done(*arguments: str) -> str:
    result = skep(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(*arguments: str) -> str:
    result = skep(*arguments)
    assert isinstance(result.exception, CommandError), result.output
    return str(result.exception)


def test_options_are_set_listed_and_deleted() -> None:
    assert "No option was changed" in skep("cluster", "config", "list").stderr
    told = done("cluster", "config", "set", "num.partitions=3", "skep.log.level=WARNING")
    assert told == "Set num.partitions=3 for all brokers.\nSet skep.log.level=WARNING for all brokers.\n"
    assert (
        done("cluster", "config", "set", "num.partitions=5", "--broker", "1") == "Set num.partitions=5 for broker 1.\n"
    )
    rows = [line.split() for line in done("cluster", "config", "list").splitlines()[1:]]
    expected = [["all", "num.partitions", "3"], ["all", "skep.log.level", "WARNING"], ["1", "num.partitions", "5"]]
    assert rows == expected

    options = {one["name"]: one for one in json.loads(done("cluster", "config", "list", "--broker", "1", "--json"))}
    assert options["num.partitions"]["source"] == "DYNAMIC_BROKER_CONFIG"
    assert options["log.dirs"]["read_only"]
    assert "max.connections" not in options
    assert "max.connections" in done("cluster", "config", "list", "--broker", "1", "--all")

    done("topics", "create", "five")
    assert len(json.loads(done("topics", "describe", "five", "--json"))[0]["partitions"]) == 5
    assert (
        done("cluster", "config", "delete", "num.partitions", "--broker", "1")
        == "Deleted num.partitions of broker 1.\n"
    )
    done("cluster", "config", "delete", "num.partitions", "skep.log.level")
    assert json.loads(done("cluster", "config", "list", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["set", "node.id=2"],
            "cannot alter the configs of all brokers: Cannot update these configs dynamically: node.id",
        ),
        (["set", "num.partition=2"], "Unknown broker config name: num.partition; did you mean num.partitions?"),
        (["set", "num.partitions=few"], "num.partitions=few"),
        (["set", "num.partitions"], "expected NAME=VALUE"),
        (["delete", "num.partitions"], "num.partitions is not set for all brokers"),
        (["list", "--broker", "7"], "broker 7 is not running; the running brokers are 1"),
        (["list", "--all"], "--all needs --broker ID"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(arguments: list[str], told: str) -> None:
    line = refused("cluster", "config", *arguments)
    assert told in line
    assert "\n" not in line


def test_kafka_configs_works_as_in_kafkas_documents(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    done("topics", "create", "orders")
    capfd.readouterr()

    def run(line: str) -> list[str]:
        kafka_configs.execute([*line.split(), "--bootstrap-server", served.address])
        sys.stdout.flush()
        return capfd.readouterr().out.splitlines()

    topic = "--entity-type topics --entity-name orders"
    told = ["Completed updating config for topic orders."]
    assert run(f"--alter {topic} --add-config retention.ms=5000,cleanup.policy=[compact,delete]") == told
    assert run(f"--describe {topic}")[:2] == [
        "Dynamic configs for topic orders are:",
        "  cleanup.policy=compact,delete sensitive=false "
        "synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}",
    ]
    run(f"--alter {topic} --delete-config retention.ms,cleanup.policy")
    assert run(f"--describe {topic}") == ["Dynamic configs for topic orders are:"]
    assert run(f"--describe {topic} --all")[0] == "All configs for topic orders are:"

    everywhere = "--entity-type brokers --entity-default"
    told = ["Completed updating default config for brokers in the cluster."]
    assert run(f"--alter {everywhere} --add-config num.partitions=2") == told
    assert run("--describe --entity-type brokers") == [
        "Dynamic configs for broker 1 are:",
        "Default configs for brokers in the cluster are:",
        "  num.partitions=2 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:num.partitions=2}",
    ]
    run(f"--alter {everywhere} --delete-config num.partitions")
    run("--alter --entity-type groups --entity-name billing --add-config consumer.session.timeout.ms=50000")
    assert len(run("--describe --entity-type groups --entity-name billing")) == 2
    with pytest.raises(CommandError, match="there is no topic 'nope'"):
        run("--describe --topic nope")
    with pytest.raises(CommandError, match=r"retention\.ms is not set for topic orders"):
        run(f"--alter {topic} --delete-config retention.ms")


def test_health_is_one_line_and_an_exit_code(served: Served) -> None:
    assert done("health").startswith("healthy: 1 broker, ")
    assert done("health", "--alive") == f"alive: a broker answers at {served.address}\n"
    expected = skep("health", "--brokers", "2")
    assert (expected.exit_code, expected.stdout) == (1, "not healthy: 1 of 2 expected brokers are running\n")
    document = json.loads(done("health", "--json"))
    assert document["healthy"]
    assert document["brokers"] == {"running": [1], "missing": []}
    assert document["partitions"]["offline"] == 0


def test_the_log_is_json_and_its_level_changes_at_run_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Served(tmp_path, "--log-level", "warning")
    try:
        monkeypatch.setenv("SKEP_BOOTSTRAP", broker.address)
        done("cluster", "config", "set", "skep.log.level=INFO")
        done("topics", "create", "orders")
        done("topics", "delete", "orders")
        wait_until(lambda: "deleted topic orders" in broker.log.read_text(), "the deletion is logged")
    finally:
        lines = broker.stop()
    assert {line["broker"] for line in lines} == {1}
    assert "INFO" in {line["level"] for line in lines}
    # Logged before the level was changed.
    assert not [line for line in lines if "is the controller" in str(line["message"])]
