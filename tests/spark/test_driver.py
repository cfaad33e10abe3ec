"""Spark as commands start it: Java is asked once, and whoever ends it, the user sees one line or none."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from skep.cli.failures import INTERRUPTED
from skep.cli.spark.pipeline_display import STARTING
from skep.testing import EmbeddedBroker
from tests.spark.pipelining import ROOT, RUN_TIMEOUT_S, environment
from tests.waiting import wait_until

# Each has a Spark of its own.
pytestmark = pytest.mark.xdist_group("spark-pipelines")

ENDLESS = "SELECT count(*) FROM range(1000000000000) WHERE hash(id) = 3"
TASK_THREAD = "Executor task l"
"""Linux keeps 15 characters of a name."""


def test_nothing_is_sent_to_a_jvm_that_is_ending(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.spark.forgetful_driver", str(tmp_path)]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    ran = subprocess.run(
        program,
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@contextmanager
def _counting(bootstrap: str) -> Iterator[tuple["subprocess.Popen[str]", psutil.Process]]:
    """``skep sql`` and its JVM, while the command waits for the answer to a query that has none."""
    query = [sys.executable, "-m", "skep.cli.main", "sql", ENDLESS, "--master", "local[1]", "--bootstrap", bootstrap]
    with subprocess.Popen(
        query, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        try:
            java = wait_until(lambda: _java(command.pid), "a task runs", timeout_s=RUN_TIMEOUT_S)
            yield command, java
        finally:
            command.kill()


def _java(command: int) -> psutil.Process | None:
    """The JVM below ``command`` when it has a thread that runs tasks."""
    for child in psutil.Process(command).children(recursive=True):
        with suppress(OSError):  # one that ended meanwhile: what is left is looked at the next time
            for thread in Path(f"/proc/{child.pid}/task").glob("*/comm"):
                if thread.read_text().strip() == TASK_THREAD:
                    return child
    return None


def test_ctrl_c_ends_a_query_without_an_error(broker: EmbeddedBroker) -> None:
    with _counting(broker.bootstrap_servers) as (command, java):
        command.send_signal(signal.SIGINT)
        told = command.communicate(timeout=RUN_TIMEOUT_S)
        assert (command.returncode, *told) == (INTERRUPTED, "", f"{STARTING}\n")
        assert psutil.wait_procs([java], timeout=30)[1] == []


def test_a_jvm_that_is_killed_is_told_in_one_line(broker: EmbeddedBroker) -> None:
    with _counting(broker.bootstrap_servers) as (command, java):
        java.kill()
        told = command.communicate(timeout=RUN_TIMEOUT_S)
        assert (command.returncode, *told) == (
            1,
            "",
            f"{STARTING}\nskep: Spark's JVM ended with exit code -9 before the command was done\n",
        )


def _noted_java(folder: Path, *, starts: bool) -> Path:
    """A JAVA_HOME whose java writes down what it was asked. It says all about itself, and runs nothing."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    version = 17 if starts else 11
    java.write_text(
        f"""#!/bin/sh
echo "$1" >> {folder}/asked
case $1 in
  -version) echo 'openjdk version "{version}.0.1"' >&2 ;;
  --list-modules) printf '%s\\n' java.base@17 jdk.incubator.vector@17 ;;
  *) echo 'Error: this Java runs nothing' >&2; exit 1 ;;
esac
"""
    )
    java.chmod(0o755)
    return folder


def _with_java(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "skep.cli.main", *arguments]
    return subprocess.run(
        command,
        env={**environment(), "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


def _commands(tmp_path: Path, bootstrap: str) -> list[tuple[str, ...]]:
    project = shutil.copytree(ROOT / "pipelines" / "cdc", tmp_path / "cdc")
    return [
        ("sql", "SELECT 1", "--bootstrap", bootstrap),
        ("pipeline", "run", str(project), "--bootstrap", bootstrap),
        ("pipeline", "validate", str(project), "--bootstrap", bootstrap),
    ]


def test_java_is_asked_once_about_itself(broker: EmbeddedBroker, tmp_path: Path) -> None:
    home = _noted_java(tmp_path, starts=True)
    for command in _commands(tmp_path, broker.bootstrap_servers):
        (home / "asked").unlink(missing_ok=True)
        ran = _with_java(home, *command)
        assert ran.returncode == 1, ran.stderr
        assert "Spark did not start: " in ran.stderr, ran.stderr
        asked = (home / "asked").read_text().splitlines()
        assert asked[:2] == ["-version", "--list-modules"]
        assert not {"-version", "--list-modules"} & set(asked[2:])


def test_java_is_asked_about_before_a_broker_is(tmp_path: Path) -> None:
    home = _noted_java(tmp_path, starts=False)
    for command in _commands(tmp_path, "127.0.0.1:1"):
        ran = _with_java(home, *command)
        assert ran.returncode == 1, ran.stderr
        assert f"{home}/bin/java is Java 11: " in ran.stderr, ran.stderr
