"""The prompt of ``skep sql`` keeps one Spark: through queries, errors and Ctrl-C."""

import sys
from pathlib import Path

import psutil
import pytest

from skep.cli.spark.pipeline_display import STARTING
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.spark.pipelining import RUN_TIMEOUT_S, environment
from tests.terminal import CTRL_C, CTRL_D, Terminal
from tests.waiting import wait_until

# It has a Spark of its own.
pytestmark = pytest.mark.xdist_group("spark-pipelines")

PROMPT = "skep> "
ENDLESS = "SELECT count(*) AS n FROM range(1000000000000) WHERE hash(id) = 3;"


def _prompt(broker: EmbeddedBroker, state: Path) -> Terminal:
    command = [sys.executable, "-m", "skep.cli.main", "sql", "--master", "local[1]"]
    variables = {"SKEP_BOOTSTRAP": broker.bootstrap_servers, "XDG_STATE_HOME": str(state)}
    return Terminal(command, {**environment(), **variables})


def test_a_prompt_keeps_its_session(broker: EmbeddedBroker, topics: Topics, tmp_path: Path) -> None:
    topics.create("hens")
    topics.fill("hens", [b'{"name": "Berta"}'])
    with _prompt(broker, tmp_path) as terminal:
        assert STARTING in terminal.wait_for(PROMPT, RUN_TIMEOUT_S)
        terminal.type("CREATE TEMPORARY VIEW kept AS SELECT 7 AS n;\n")
        terminal.wait_for(PROMPT, RUN_TIMEOUT_S)
        terminal.type("SELEC 1;\n")
        assert "skep: Syntax error at or near 'SELEC'" in terminal.wait_for(PROMPT, RUN_TIMEOUT_S)
        terminal.type(f"{ENDLESS}\n")
        terminal.wait_for(f"{ENDLESS}\n")
        # Whether its job runs already or not: it has no end but this one.
        terminal.type(CTRL_C)
        terminal.wait_for(PROMPT, RUN_TIMEOUT_S)
        terminal.type("SELECT name, n FROM hens, kept;\n")
        assert "name   n\nBerta  7\n" in terminal.wait_for(PROMPT, RUN_TIMEOUT_S)
        assert terminal.screen.count(STARTING) == 1
        below = psutil.Process(terminal.process.pid).children(recursive=True)
        assert below
        terminal.type(CTRL_D)
        assert terminal.wait_for_end(RUN_TIMEOUT_S) == 0
        assert psutil.wait_procs(below, timeout=30)[1] == []


def test_a_prompt_that_is_left_while_spark_starts_leaves_nothing(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with _prompt(broker, tmp_path) as terminal:
        terminal.wait_for(PROMPT, RUN_TIMEOUT_S)
        command = psutil.Process(terminal.process.pid)
        below = wait_until(lambda: command.children(recursive=True), "Spark is being started")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end(RUN_TIMEOUT_S) == 0
        assert psutil.wait_procs(below, timeout=30)[1] == []
        assert "Traceback" not in terminal.screen
