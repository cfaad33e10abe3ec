"""The example pipelines, run as a user runs them, with exact results; and what a user is told when one is wrong."""

import datetime
import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from skep.cli.spark.pipeline_template import write_project
from skep.testing import EmbeddedBroker
from tests.spark.pipelining import RUN_TIMEOUT_S, done, environment, load, records, skep, table
from tests.spark.printed_example import RUN, PrintedExample

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
        """None, or what is wrong with the pipeline. ``flows`` are those of the last run, by name."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"project": str(project), "dry": dry}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        self.flows: dict[str, dict[str, Any]] = answer["flows"]
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


def test_orders_are_enriched_and_bad_ones_go_to_dead_letters_with_reason_and_origin(
    server: Server, tmp_path: Path
) -> None:
    with _example("enrichment", tmp_path, server) as (example, bootstrap):
        example.up_to_a_run()
        letters = [json.loads(line) for line in example.the_rest()]
        sold = sorted(json.loads(record.value or "")["id"] for record in records(bootstrap, "sales"))
        revenue = table(example.project, "revenue")
        # In the next run the products of this one are there, and are emptied before they are filled again.
        example.do("skep produce orders < data/orders.jsonl")
        example.do(RUN)
        assert len(records(bootstrap, "orders.bad")) == 2 * len(letters)
    assert revenue == [("eggs", 2, Decimal("8.40")), ("hen", 3, Decimal("64.50")), ("skep", 1, Decimal("35.00"))]
    assert [[str(cell) for cell in row] for row in revenue] == example.table("product")
    assert sold == [1, 2, 7]
    assert table(example.project, "revenue") == [(name, 2 * count, 2 * amount) for name, count, amount in revenue]

    headers = [{header["key"]: header["value"] for header in letter["headers"]} for letter in letters]
    lines = (example.project / "data" / "orders.jsonl").read_text().splitlines()
    assert [[header["dlq.offset"], header["dlq.reason"]] for header in headers] == [
        ["2", "no product 'goose'"],
        ["3", "field 'quantity' is not INT: three"],
        ["4", "field 'id' is missing"],
        ["5", f"not JSON: {lines[5]}"],
    ]
    assert [[header["dlq.offset"], header["dlq.reason"]] for header in headers] == example.table("`dlq.offset`")
    assert [letter["value"] for letter in letters] == lines[2:6]
    assert {(header["dlq.topic"], header["dlq.partition"]) for header in headers} == {("orders", "0")}
    assert all(int(header["dlq.timestamp"]) > 0 for header in headers)


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

    lines = done("pipeline", "run", str(project), "--master", "local[2]").splitlines()
    assert any(line.endswith("orders: 6 rows in, 4 rows out, 2 bad, lag 0") for line in lines)
    # The table at the end, without the times that flows took.
    head = lines.index(next(line for line in lines if line.startswith("flow ")))
    assert [line.split()[:6] for line in lines[head + 1 : -1]] == [
        ["orders", "completed", "6", "4", "2", "0"],
        ["to_bad_orders", "completed", "6", "2", "-", "0"],
        ["to_large_orders", "completed", "4", "2", "-", "-"],
        ["revenue", "completed", "-", "3", "-", "-"],
    ]
    assert "The run completed in" in lines[-1]
    shown = done("pipeline", "show", "revenue", str(project)).splitlines()
    assert sorted(line.split() for line in shown[1:]) == [
        ["basket", "1", "129.0"],
        ["eggs", "2", "118.8"],
        ["hen", "1", "43.0"],
    ]
    letters = [json.loads(line) for line in done("pipeline", "show", "bad_orders", str(project), "--json").splitlines()]
    assert sorted(letter["value"] for letter in letters)[0] == "this is not an order"
    drawn = done("pipeline", "graph", str(project))
    assert "└─ topic orders.bad (sink bad_orders), by to_bad_orders" in drawn
    assert "completed, 6 in, 4 out, 2 bad, lag 0" in drawn
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
        (SQL_FILE, "FROM orders", "FROM ordres", r"^flow revenue \(transformations/revenue\.sql\) failed: .*`ordres`"),
        (SQL_FILE, "SELECT product", "SELECT color", r"^flow revenue \(transformations/revenue\.sql\) failed: .*color"),
        (
            PYTHON_FILE,
            'table("orders")',
            'table("ordres")',
            r"^flow to_large_orders \(transformations/orders\.py\) failed: .*`ordres`",
        ),
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
    assert re.search(r"^flow \S+ \(transformations/orders\.py\) failed: there is no topic .ordres.", error), error


def test_a_broker_that_is_away_is_told_before_spark_is_started(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    write_project(project, "127.0.0.1:1")
    ran = skep("pipeline", "run", str(project))
    assert (ran.returncode, ran.stderr) == (
        1,
        "skep: no broker answers at 127.0.0.1:1 (is it running? start one with: skep serve)\n",
    )
    assert not (project / "pipeline-storage").exists()


WINDOWS = """

@dp.table
def per_minute() -> DataFrame:
    rows = spark.readStream.table("{source}").withWatermark("timestamp", "1 minute")
    return rows.groupBy(F.window("timestamp", "1 minute")).count().select("window.start", "count")
"""


@pytest.mark.parametrize("source", ["parsed_orders", "orders"])
def test_a_watermark_can_be_set_on_a_view_and_on_a_table_of_the_pipeline(
    server: Server, bootstrap: str, tmp_path: Path, source: str
) -> None:
    project = write_project(tmp_path / f"windows{uuid.uuid4().hex}", bootstrap)
    definition = project / PYTHON_FILE
    definition.write_text(definition.read_text() + WINDOWS.format(source=source))
    assert server.run(project, dry=True) is None


def test_a_window_is_written_when_the_watermark_has_passed_it(server: Server, bootstrap: str, tmp_path: Path) -> None:
    topic, project = f"minutes-{uuid.uuid4().hex}", write_project(tmp_path / f"minutes{uuid.uuid4().hex}", bootstrap)
    _create(bootstrap, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for second in (0, 30, 200):
        value = json.dumps({"id": second, "product": "eggs"}).encode()
        producer.produce(topic, value, timestamp=1_714_564_800_000 + second * 1000)
    producer.produce(topic, b"no order", timestamp=1_714_564_800_000)
    assert producer.flush(60) == 0
    text = (project / PYTHON_FILE).read_text().replace('"subscribe", "orders"', f'"subscribe", "{topic}"')
    # Without the sinks and the view: they are tested above.
    (project / PYTHON_FILE).write_text(text.split("dp.create_sink")[0] + WINDOWS.format(source="orders"))
    (project / SQL_FILE).unlink()
    assert server.run(project) is None
    assert table(project, "per_minute") == [(_at("12:00:00"), 2)]
    orders = server.flows["orders"]
    assert (orders["state"], orders["rows_in"], orders["rows_out"], orders["bad_rows"]) == ("completed", 4, 3, 1)
    assert server.flows["per_minute"]["rows_out"] == 1


def test_a_table_that_spark_looks_for_too_early_is_told_with_what_to_write(
    server: Server, bootstrap: str, tmp_path: Path
) -> None:
    project = write_project(tmp_path / f"early{uuid.uuid4().hex}", bootstrap)
    definition = project / PYTHON_FILE
    early = '\n\n@dp.table\ndef more() -> DataFrame:\n    return spark.readStream.table("orders").drop("price")\n'
    definition.write_text(definition.read_text() + early)
    error = server.run(project, dry=True)
    assert error is not None
    assert re.match(r"transformations/orders\.py:\d+: there is no table or view 'orders'; .* write select\(\)", error)
