"""``skep sql`` without a query: a prompt in a terminal, and statements from a pipe."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from skep.testing import EmbeddedBroker
from tests.scenario.archive_topics import SOURCES
from tests.terminal import CTRL_D, CTRL_P, Terminal

COMMAND = [sys.executable, "-m", "skep.cli.main", "sql", "--engine", "duckdb"]
PROMPT = "skep> "
ENDLESS = "SELECT count(*) FROM range(100000000000000) t(x) WHERE hash(x) = 3;"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
        for value in (b'{"colour": "brown", "laid": 3}', b'{"colour": "white", "laid": 4}'):
            producer.produce("eggs", value)
            producer.produce("eggs.late", value)
        assert producer.flush(60) == 0
        yield running


@pytest.fixture
def environment(broker: EmbeddedBroker, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": SOURCES,
        "SKEP_BOOTSTRAP": broker.bootstrap_servers,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def test_statements_are_typed_on_one_line_or_several(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, environment) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("SELECT sum(laid)\n")
        terminal.wait_for("   -> ")
        terminal.type("AS laid FROM eggs; SELECT 5 AS five;\n")
        assert "laid\n   7\nfive\n   5\n" in terminal.wait_for(PROMPT)
        terminal.type("CREATE TABLE kept AS SELECT 1 AS x;\n")
        terminal.wait_for(PROMPT)
        terminal.type("EXPLAIN SELECT x FROM kept;\n")
        assert "plan" in terminal.wait_for(PROMPT)
        terminal.type("SELEC 1;\n")
        assert 'skep: syntax error at or near "SELEC"\n' in terminal.wait_for(PROMPT)
        terminal.type("exit\n")
        assert terminal.wait_for_end() == 0


def test_names_are_listed_and_completed(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, environment) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("\\d\n")
        assert "eggs       topic\neggs.late  topic\n" in terminal.wait_for(PROMPT)
        terminal.type("\\d eggs\n")
        assert "colour      STRING\nlaid        BIGINT\n_key        STRING\n" in terminal.wait_for(PROMPT)
        terminal.type("\\d hens\n")
        assert "skep: there is no topic 'hens'" in terminal.wait_for(PROMPT)
        terminal.type("\\x\n")
        assert "skep: there is no command \\x; \\? lists them" in terminal.wait_for(PROMPT)
        terminal.type("sel\t max(la\t")
        # The table is not known yet, so nothing is completed.
        terminal.type("id) AS most fr\t `eg\t wher\t col\t = 'white';\n")
        terminal.wait_for("select max(laid) AS most from `eggs.late` where colour = 'white';\n")
        assert terminal.wait_for(PROMPT).startswith("most\n   4\n")


def test_ctrl_c_discards_a_line_and_cancels_a_query(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, environment) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("SELECT 1,\n")
        terminal.wait_for("   -> ")
        terminal.type("nonsense")
        terminal.wait_for("nonsense")
        terminal.interrupt(until=PROMPT)
        terminal.type(f"{ENDLESS}\n")
        terminal.wait_for(f"{ENDLESS}\n")
        terminal.interrupt(until=PROMPT)
        terminal.type("SELECT 6 AS six;\n")
        terminal.wait_for("six\n  6\n")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_the_history_is_kept_for_its_owner(environment: dict[str, str], tmp_path: Path) -> None:
    for typed in ("SELECT 1 AS remembered;\n", f"{CTRL_P}\n"):
        with Terminal(COMMAND, environment) as terminal:
            terminal.wait_for(PROMPT)
            terminal.type(typed)
            terminal.wait_for("remembered;\n")
            terminal.wait_for("remembered\n")
            terminal.wait_for(PROMPT)
            terminal.type(CTRL_D)
            assert terminal.wait_for_end() == 0
    history = tmp_path / "state" / "skep" / "sql_history"
    assert history.read_text().splitlines() == ["SELECT 1 AS remembered;"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_history_that_cannot_be_kept_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with Terminal(COMMAND, environment) as terminal:
        assert "The history is not kept: " in terminal.wait_for(PROMPT)
        terminal.type("SELECT 8 AS eight;\n")
        terminal.wait_for("eight\n    8\n")


def _piped(text: str, environment: dict[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *options], input=text, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_statements_are_read_from_a_pipe(environment: dict[str, str]) -> None:
    ran = _piped("-- eggs\nSELECT count(*) AS n\nFROM eggs;\n\nSELECT 2 AS two", environment, "--json")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, '{"n":2}\n{"two":2}\n', "")
    ran = _piped("\\d eggs.late\n\\q\nSELECT 1", environment)
    assert (ran.returncode, ran.stdout.splitlines()[:2]) == (0, ["column      type", "colour      STRING"])
    ran = _piped("SELECT 1 AS one; SELEC 2; SELECT 3", environment, "--csv")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "one\n1\n", 'skep: syntax error at or near "SELEC"\n')
