"""How runs end that do not end by themselves: by signals, by a broker that stops. Each test starts its own Spark."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from skep.cli.failures import INTERRUPTED
from skep.cli.spark.pipeline_display import STARTING_A_RUN
from skep.cli.spark.pipeline_template import write_project
from skep.testing import EmbeddedBroker
from tests.spark.pipelining import RUN_TIMEOUT_S, done, environment, load, table
from tests.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("spark-pipelines"), pytest.mark.timeout(900)]
TERMINATED = 128 + signal.SIGTERM


class Run:
    """The command with its lines, and all processes that were seen below it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, text: str, times: int = 1) -> None:
        def found() -> bool:
            if sum(text in line for line in self.lines) >= times:
                return True
            assert self.process.poll() is None, f"ended before {text!r}: {self.lines}"
            return False

        wait_until(found, lambda: f"{text!r} is printed: {self.lines}", RUN_TIMEOUT_S)

    def below(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        code = self.process.wait(RUN_TIMEOUT_S)
        self._reading.join()
        return code


@contextmanager
def _running(project: Path, *options: str) -> Iterator[Run]:
    command = [sys.executable, "-m", "skep.cli.main", "pipeline", "run", str(project), "--master", "local[2]", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        run = Run(process)
        try:
            yield run
        finally:
            process.kill()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options={"num.partitions": "1"}) as broker:
        yield broker


@pytest.fixture
def project(broker: EmbeddedBroker, tmp_path: Path) -> Path:
    """The example project with its topics and six orders."""
    project = write_project(tmp_path / "shop", broker.bootstrap_servers)
    for topic in ("orders", "orders.bad", "orders.large"):
        done("topics", "create", topic, "--bootstrap-server", broker.bootstrap_servers)
    load(broker.bootstrap_servers, "orders", project / "data" / "orders.jsonl", keyed=False)
    return project


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
def test_a_signal_while_spark_starts_leaves_no_java(project: Path, number: signal.Signals, code: int) -> None:
    with _running(project) as run:
        run.wait_for(STARTING_A_RUN)
        # The first is a shell, which becomes Java; pyspark waits meanwhile, and would forget the process.
        below = wait_until(run.below, "Spark is being started", RUN_TIMEOUT_S)
        names = {process.name() for process in below}
        run.process.send_signal(number)
        assert run.end() == code, run.lines
        assert psutil.wait_procs(below, timeout=30)[1] == [], names
        left = [one for one in psutil.process_iter(["cmdline"]) if str(project) in " ".join(one.info["cmdline"] or ())]
        assert left == []
    assert run.lines[-1] == "skep: stopped"


def test_sigterm_during_a_run_stops_after_the_current_batch_and_the_next_run_continues(project: Path) -> None:
    with _running(project) as run:
        run.wait_for("orders: running")
        below = run.below()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == TERMINATED, run.lines
        assert psutil.wait_procs(below, timeout=30)[1] == []
    printed = "\n".join(run.lines)
    assert "Stopping when the current batch of orders is done; again: at once." in printed
    assert "Stopped between two batches. The next run continues there." in printed
    # The batch was done, and nothing of the flows after it.
    assert [row[1] for row in table(project, "orders")] == [1, 2, 3, 6]
    last = json.loads((project / "pipeline-storage" / "last-run.json").read_text())
    assert {flow["flow"]: flow["rows_out"] for flow in last["flows"]}["orders"] == 4


def test_a_continuous_run_processes_what_comes_and_ends_with_the_reason_when_the_broker_stops(
    broker: EmbeddedBroker, project: Path
) -> None:
    with _running(project, "--continuous", "--patience", "5s") as run:
        run.wait_for("The run completed in")
        done("produce", "orders", "--bootstrap-server", broker.bootstrap_servers, text='{"id": 7, "product": "hen"}\n')
        run.wait_for("The run completed in", times=2)
        assert [row[1] for row in table(project, "orders")] == [1, 2, 3, 6, 7]
        # In the middle of a run, which is what Spark needs minutes to notice.
        done("produce", "orders", "--bootstrap-server", broker.bootstrap_servers, text='{"id": 8, "product": "hen"}\n')
        run.wait_for("orders: starting", times=3)
        below = run.below()
        broker.kill()
        assert run.end() == 1, run.lines
        assert psutil.wait_procs(below, timeout=30)[1] == []
    told = [line for line in run.lines if "no broker answers" in line]
    assert f"no broker answers at {broker.bootstrap_servers}" in told[0]
    assert told[0].endswith("; waiting for it for 5.0 s (--patience).")
    assert run.lines[-1].startswith(f"skep: no broker answers at {broker.bootstrap_servers} for 5.0 s (--patience);")
    # Spark was started once, and no state contradicts another.
    assert sum(STARTING_A_RUN in line for line in run.lines) == 1
    assert not [line for line in run.lines if "failed:" in line or "retrying" in line]
