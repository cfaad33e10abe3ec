"""An example of ``pipelines`` as its README prints it: its commands, run in a copy one after the other, its tables."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.spark.pipelining import ROOT, RUN_TIMEOUT_S, environment

RUN = "skep pipeline run"


class PrintedExample:
    """A copy, which a run writes into, with a broker that is not where the README has it.

    ``run`` does in the place of ``skep pipeline run`` what that would do, with a Spark that is there already.
    """

    def __init__(self, name: str, folder: Path, bootstrap: str, run: Callable[[Path], None] | None = None) -> None:
        source = ROOT / "pipelines" / name
        ignored = shutil.ignore_patterns("pipeline-storage", "__pycache__")
        self.project = Path(shutil.copytree(source, folder / name, ignore=ignored))
        spec = self.project / "spark-pipeline.yml"
        spec.write_text(spec.read_text().replace("127.0.0.1:9092", bootstrap))
        script = folder / "bin" / "skep"
        script.parent.mkdir()
        script.write_text(f"#!{sys.executable}\nfrom skep.cli.main import main\n\nmain()\n")
        script.chmod(0o755)
        path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**environment(), "PATH": path, "SKEP_BOOTSTRAP": bootstrap}
        self._run = run
        self._readme = (source / "README.md").read_text()
        self._commands = self._readme.split("```console\n")[1].split("```")[0].splitlines()
        assert RUN in self._commands

    def up_to_a_run(self) -> None:
        """The commands up to the next run of the pipeline, and that."""
        while self._next() != RUN:
            pass

    def the_rest(self) -> list[str]:
        """The commands that are left, of which none is a run; the lines that the last of them printed."""
        assert self._commands
        assert RUN not in self._commands
        while self._commands:
            self._next()
        return self._printed.splitlines()

    def _next(self) -> str:
        command = self._commands.pop(0)
        self.do(command)
        return command

    def do(self, command: str) -> None:
        if command == RUN and self._run is not None:
            self._run(self.project)
            return
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self.project,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        self._printed = ran.stdout

    def table(self, first_column: str) -> list[list[str]]:
        """The rows of the README's table whose first column has this name, sorted."""
        head = rf"^\| {re.escape(first_column)} \|.*\n\|[-|]+\n"
        [rows] = re.findall(rf"{head}((?:\|.*\n)+)", self._readme, re.MULTILINE)
        return sorted([cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in rows.splitlines())
