"""The example pipelines, run as a user runs them, with exact results; and what a user is told when one is wrong."""

import datetime
import json
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from skep.cli.failures import INTERRUPTED
from skep.cli.spark.pipeline_template import write_project
from skep.testing import EmbeddedBroker
from tests.spark.pipelining import RUN_TIMEOUT_S, done, environment, load, records, skep, table
from tests.spark.printed_example import PrintedExample
from tests.waiting import wait_until

# A Spark of their own, the server: they need not wait for the tests of the shared session.
pytestmark = [pytest.mark.xdist_group("spark-pipelines"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with EmbeddedBroker(options={"num.partitions": "2"}) as broker:
        yield broker.bootstrap_servers


class Server:
    """One Spark that runs pipelines in turn; see the program."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, project: Path, *, dry: bool = False) -> str | None:
        """None, or what is wrong with the pipeline."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"project": str(project), "dry": dry}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        error: str | None = answer["error"]
        return error


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    program = [sys.executable, str(Path(__file__).with_name("pipeline_server.py")), str(folder)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(RUN_TIMEOUT_S)


@contextmanager
def _example(name: str, folder: Path, server: Server) -> Iterator[tuple[PrintedExample, str]]:
    """With the address of a broker of its own: as `skep serve` starts one."""

    def run(project: Path) -> None:
        assert server.run(project) is None

    with EmbeddedBroker() as broker:
        yield PrintedExample(name, folder, broker.bootstrap_servers, run), broker.bootstrap_servers


def _create(bootstrap: str, topic: str, *options: str) -> None:
    done("topics", "create", topic, "--partitions", "2", *options, "--bootstrap-server", bootstrap)


def _at(clock: str) -> datetime.datetime:
    """In UTC, and without saying so: Spark's Parquet keeps moments as INT96, which has no zone."""
    return datetime.datetime.fromisoformat(f"2024-05-01T{clock}")


def _minutes(rows: list[tuple[datetime.datetime, str, int]]) -> list[dict[str, object]]:
    return [{"minute": at.strftime("%Y-%m-%dT%H:%M:%S.000Z"), "page": page, "views": views} for at, page, views in rows]


def _cells(rows: list[tuple[Any, ...]]) -> list[list[str]]:
    """As a README shows them: of a moment the time of day."""
    return [[f"{cell:%H:%M:%S}" if isinstance(cell, datetime.datetime) else str(cell) for cell in row] for row in rows]


def test_clicks_become_windowed_counts_and_sessions_and_late_clicks_are_left_out(
    server: Server, tmp_path: Path
) -> None:
    with _example("clickstream", tmp_path, server) as (example, bootstrap):
        project = example.project
        example.up_to_a_run()
        first_views = [
            (_at("12:00:00"), "home", 3),
            (_at("12:00:00"), "products", 1),
            (_at("12:01:00"), "basket", 1),
            (_at("12:01:00"), "products", 1),
            (_at("12:04:00"), "home", 1),
        ]
        assert table(project, "page_views") == first_views
        first_sessions = [
            ("ada", _at("12:00:05"), _at("12:01:10"), 4),
            ("bob", _at("12:00:20"), _at("12:01:30"), 2),
        ]
        assert table(project, "sessions") == first_sessions

        example.up_to_a_run()
        printed = [json.loads(line) for line in example.the_rest()]
        users = sorted(record.key or "" for record in records(bootstrap, "sessions"))
    # Bob's click of 12:02 came when clicks of 12:10 had been seen: too late for its minute and for his session.
    views = [
        *first_views,
        (_at("12:10:00"), "basket", 1),
        (_at("12:10:00"), "products", 1),
        (_at("12:20:00"), "home", 1),
    ]
    assert table(project, "page_views") == views
    assert table(project, "sessions") == sorted(
        [
            *first_sessions,
            ("cid", _at("12:04:00"), _at("12:04:00"), 1),
            ("cid", _at("12:10:00"), _at("12:10:30"), 2),
            ("ada", _at("12:20:00"), _at("12:20:00"), 1),
        ]
    )
    assert table(project, "top_pages") == [("basket", 2), ("home", 5), ("products", 3)]
    assert len(table(project, "clicks")) == 12
    assert sorted(printed, key=lambda row: (row["minute"], row["page"])) == _minutes(views)
    assert users == ["ada", "ada", "bob", "cid", "cid"]
    assert [[f"{minute:%H:%M}", page, str(count)] for minute, page, count in views] == example.table("minute")
    assert _cells(table(project, "sessions")) == example.table("user")


def test_changes_become_current_state_in_a_compacted_topic_and_in_a_table(server: Server, tmp_path: Path) -> None:
    with _example("cdc", tmp_path, server) as (example, bootstrap):
        example.up_to_a_run()
        first = table(example.project, "customers")
        assert first == [(1, "Ada", "London"), (2, "Bob", "Rome"), (3, "Cid", "Burgos")]

        example.up_to_a_run()
        printed = example.the_rest()
        written = records(bootstrap, "customers")
    now = [(1, "Ada Lovelace", "Turin"), (2, "Bob", "Rome"), (4, "Dora", "Vienna")]
    assert table(example.project, "customers") == now
    assert _cells(now) == example.table("id")
    assert len(written) == len(printed) == 8
    last = {record.key: record.value for record in written}
    assert last["3"] is None
    state = sorted(tuple(json.loads(value).values()) for value in last.values() if value is not None)
    assert state == now


def test_a_new_project_runs_as_it_is_and_goes_on_where_it_was(bootstrap: str, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    done("pipeline", "init", str(project), "--bootstrap", bootstrap)
    for topic in ("orders", "orders.bad", "orders.large"):
        _create(bootstrap, topic)
    load(bootstrap, "orders", project / "data" / "orders.jsonl", keyed=False)
    files = sorted(project.rglob("*"))
    assert done("pipeline", "validate", str(project)).splitlines()[-1] == "The pipeline is valid."
    assert sorted(project.rglob("*")) == files
    assert records(bootstrap, "orders.large") == records(bootstrap, "orders.bad") == []

    lines = done("pipeline", "run", str(project), "--master", "local[2]")
    assert "orders: 6 rows" in lines
    assert "orders: completed" in lines
    assert table(project, "revenue") == [("basket", 1, 129.0), ("eggs", 2, 118.8), ("hen", 1, 43.0)]

    again = done(
        "produce", "orders", "--bootstrap-server", bootstrap, text='{"id": 7, "product": "hen", "quantity": 5}\n'
    )
    assert again == ""
    done("pipeline", "run", str(project), "--master", "local[2]")
    assert [row[1] for row in table(project, "orders")] == [1, 2, 3, 6, 7]
    assert sorted(record.key or "" for record in records(bootstrap, "orders.large")) == ["2", "3"]
    reasons = sorted(record.headers["dlq.reason"] for record in records(bootstrap, "orders.bad"))
    assert reasons == ["field 'quantity' is not INT: two", "not JSON: this is not an order"]

    # Rows twice, from no topic: a table loses them only when it is emptied.
    before = table(project, "orders")
    files = project / "pipeline-storage" / "tables" / "orders"
    shutil.copy(max(files.glob("*.parquet"), key=lambda path: path.stat().st_size), files / "part-copied.parquet")
    assert len(table(project, "orders")) > len(before)
    done("pipeline", "run", str(project), "--master", "local[2]", "--full-refresh", "orders")
    assert table(project, "orders") == before


PYTHON_FILE, SQL_FILE = "transformations/orders.py", "transformations/revenue.sql"


@pytest.mark.parametrize(
    ("path", "right", "wrong", "told"),
    [
        (SQL_FILE, "SELECT product", "SELEKT product", r"^transformations/revenue\.sql: .*SELEKT"),
        (SQL_FILE, "FROM orders", "FROM ordres", "ordres"),
        (SQL_FILE, "SELECT product", "SELECT color", "color"),
        (PYTHON_FILE, '"startingOffsets"', '"startOffsets"', "(?i)startOffsets"),
        (PYTHON_FILE, "ORDER =", "boom()\nORDER =", r"^transformations/orders\.py:\d+: NameError: name 'boom' is not"),
        (PYTHON_FILE, "ORDER =", "ORDER = =", r"^transformations/orders\.py.*SyntaxError"),
    ],
)
def test_what_is_wrong_with_a_pipeline_is_told_in_one_line(
    server: Server, bootstrap: str, tmp_path: Path, path: str, right: str, wrong: str, told: str
) -> None:
    project = write_project(tmp_path / f"wrong{uuid.uuid4().hex}", bootstrap)
    text = (project / path).read_text()
    (project / path).write_text(text.replace(right, wrong, 1))
    error = server.run(project, dry=True)
    assert error is not None
    assert re.search(told, error), error
    assert "\n" not in error


def test_a_topic_that_is_not_there_is_told_in_one_line(server: Server, bootstrap: str, tmp_path: Path) -> None:
    project = write_project(tmp_path / f"missing{uuid.uuid4().hex}", bootstrap)
    definition = project / PYTHON_FILE
    definition.write_text(definition.read_text().replace('"subscribe", "orders"', '"subscribe", "ordres"'))
    error = server.run(project)
    assert error is not None
    assert "\n" not in error
    assert re.search(r"^flow \S+ failed: there is no topic .ordres.", error), error


def test_a_broker_that_is_away_is_told_before_spark_is_started(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    write_project(project, "127.0.0.1:1")
    ran = skep("pipeline", "run", str(project))
    assert (ran.returncode, ran.stderr) == (
        1,
        "skep: no broker answers at 127.0.0.1:1 (is it running? start one with: skep serve)\n",
    )
    assert not (project / "pipeline-storage").exists()


def test_ctrl_c_ends_all_that_a_run_has_started(bootstrap: str, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    write_project(project, bootstrap)
    command = [sys.executable, "-m", "skep.cli.main", "pipeline", "run", str(project)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as run:
        try:
            process = psutil.Process(run.pid)
            java = wait_until(
                lambda: [child for child in process.children(recursive=True) if child.name() == "java"],
                "Java is started",
                timeout_s=RUN_TIMEOUT_S,
            )
            started = process.children(recursive=True)
            run.send_signal(signal.SIGINT)
            run.wait(RUN_TIMEOUT_S)
        finally:
            run.kill()
    assert run.returncode == INTERRUPTED
    assert java
    assert psutil.wait_procs(started, timeout=30)[1] == []
