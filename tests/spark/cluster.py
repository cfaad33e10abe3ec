"""A standalone Spark cluster out of the wheel, in processes of its own: a master, workers, and programs sent to it.

Every address is of this machine and every port is chosen by the process that listens on it. The workers know nothing
of the source tree (``PYTHONPATH`` is taken from them): how a package reaches them is the program's affair.
"""

import json
import os
import re
import subprocess
import urllib.request
import zipfile
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyspark

from skep.cli.spark.spark_driver import workers_python
from tests.spark.pipelining import SHORT_LIVED_JAVA
from tests.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
SOURCE = Path(__file__).parents[2] / "src"
PATIENCE_S = 120.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SHORT_LIVED_JAVA,
    "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
    "spark.driver.host": "127.0.0.1",
    # Other tests run meanwhile: a Python worker that comes late is not lost.
    "spark.python.authenticate.socketTimeout": "60s",
}


def environment(directory: Path) -> dict[str, str]:
    """Of every Java here: it finds Spark, and Python with all that is installed, but not the source tree."""
    inherited = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "SPARK_CONF_DIR")}
    # All are on this machine, so they can start Python as a Spark of one process does: three times as quick.
    python = workers_python(directory / "workers.log")
    return inherited | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED_JAVA,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }


def kill(process: "subprocess.Popen[Any]") -> None:
    """``kill -9`` of a process and all that it started, at once. Nothing happens if it has ended."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    psutil.wait_procs(family, timeout=PATIENCE_S)


def zipped_packages(path: Path) -> Path:
    """Both packages as one file for ``--py-files``."""
    with zipfile.ZipFile(path, "w") as archive:
        for package in ("skep", "pyspark_skep"):
            for module in sorted((SOURCE / package).rglob("*.py")):
                archive.write(module, module.relative_to(SOURCE))
    return path


class StandaloneCluster:
    """A master and its workers, of one core and 1 GB each. Owns their processes; logs are in ``directory``."""

    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        self.environment = environment(directory)
        self._wanted = workers
        self._started = 0
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.url = ""
        self._ui = 0

    def start(self) -> "StandaloneCluster":
        self._master = self._daemon(
            "master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        self.url = f"spark://127.0.0.1:{self._port_in_log('sparkMaster')}"
        self._ui = self._port_in_log("MasterUI")
        self.complete()
        return self

    def complete(self) -> None:
        """Starts workers until all are there again, and waits for the master to know them."""
        wait_until(self._is_complete, self._logs, PATIENCE_S)

    def _is_complete(self) -> bool:
        assert self._master is not None
        assert self._master.poll() is None, f"the master ended: {self._logs()}"
        # One that a test has killed, or that did not come up by itself.
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        while len(self._workers) < self._wanted:
            self._started += 1
            name = f"worker-{self._started}"
            self._workers.append(
                self._daemon(
                    name,
                    *("worker.Worker", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                    *("--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / name), self.url),
                )
            )
        return self.alive_workers() == self._wanted

    def alive_workers(self) -> int:
        return sum(worker["state"] == "ALIVE" for worker in self._state()["workers"])

    def busy_workers(self) -> int:
        """How many run an executor of some application."""
        return sum(worker["coresused"] > 0 for worker in self._state()["workers"] if worker["state"] == "ALIVE")

    def kill_worker(self) -> None:
        """One worker, its executors and their Python processes."""
        kill(self._workers.pop(0))

    def submit(
        self, log: Path, *program: str, options: Sequence[str] = (), **environ: str
    ) -> "subprocess.Popen[bytes]":
        """``spark-submit`` of a program with its arguments; the driver is a child of this process."""
        settings = [word for name, text in SETTINGS.items() for word in ("--conf", f"{name}={text}")]
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, *settings, *options, *program]
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=log.parent,
                env={**self.environment, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self) -> None:
        for process in [*self._workers, *filter(None, [self._master])]:
            kill(process)

    def _daemon(self, name: str, kind: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def _port_in_log(self, service: str) -> int:
        log = self._directory / "master.log"
        words = rf"started service '{service}' on port (\d+)"
        return int(wait_until(lambda: re.search(words, log.read_text()), self._logs, PATIENCE_S).group(1))

    def _state(self) -> dict[str, Any]:
        """What the master says of its workers, and that it has none while it says nothing.

        It listens before its pages are there, and has pages before they are JSON. On a busy machine it may close the
        connection in the middle of one.
        """
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui}/json/", timeout=PATIENCE_S) as response:
                state: dict[str, Any] = json.load(response)
                return state
        except (OSError, HTTPException, json.JSONDecodeError):
            return {"workers": []}

    def _logs(self) -> str:
        """The ends of all logs, for who reads why the cluster did not come up."""
        ends = (f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self._directory.glob("*.log")))
        return "the cluster is complete\n" + "\n".join(ends)

    def __enter__(self) -> "StandaloneCluster":
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
