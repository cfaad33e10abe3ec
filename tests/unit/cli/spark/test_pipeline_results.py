"""What a run leaves for ``skep pipeline show`` and ``graph``, read without Spark."""

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from skep.cli.failures import CommandError
from skep.cli.spark.last_run import FILE, digest_of, load_last_run, save_last_run, table_folder
from skep.cli.spark.pipeline_graph import SINK, TABLE, TOPIC, VIEW, Dataset, FlowGraph
from skep.cli.spark.pipeline_progress import Flow
from skep.cli.spark.pipeline_project import Project, load_project
from skep.cli.spark.pipeline_results import plain, show_rows
from skep.cli.spark.pipeline_template import write_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The example after a run, as far as its files go."""
    loaded = load_project(write_project(tmp_path / "shop", "127.0.0.1:1"), {})
    folder = table_folder(loaded, "revenue")
    assert folder is not None
    folder.mkdir(parents=True)
    table = pyarrow.table({"product": ["eggs", "hen"], "orders": [2, 1], "at": [datetime.datetime(2024, 5, 1)] * 2})
    pyarrow.parquet.write_table(table, folder / "part-0.parquet")
    graph = FlowGraph()
    graph.add(Dataset("parsed", VIEW))
    graph.add_flow("parsed", "parsed", [Dataset("orders", TOPIC)])
    graph.add(Dataset("bad_orders", SINK, "orders.bad"))
    graph.add_flow("to_bad", "bad_orders", [Dataset("parsed", TABLE)])
    graph.add_flow("revenue", "revenue", [Dataset("parsed", TABLE)])
    save_last_run(loaded, graph.complete(), [Flow("revenue", "completed", rows_out=2)], "done")
    return loaded


def test_the_last_run_is_read_as_it_was_saved(project: Project) -> None:
    last = load_last_run(project)
    assert last is not None
    assert last.summary == "done"
    assert last.flows["revenue"]["rows_out"] == 2
    assert [flow.name for flow in last.graph.flows] == ["parsed", "to_bad", "revenue"]
    assert last.definitions == digest_of(project)


def test_changed_definitions_have_another_digest(project: Project) -> None:
    before = digest_of(project)
    path = project.definitions()[0]
    path.write_text(path.read_text() + "\n")
    assert digest_of(project) != before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"flows": [{}]}'])
def test_a_file_of_another_version_is_as_none(project: Project, text: str) -> None:
    assert project.local_storage is not None
    (project.local_storage / FILE).write_text(text)
    assert load_last_run(project) is None


def test_a_table_is_shown(project: Project, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show_rows(project, "revenue", 1, json=False)
    printed, note = capfdbinary.readouterr()
    assert [line.split() for line in printed.decode().splitlines()] == [
        ["product", "orders", "at"],
        ["eggs", "2", "2024-05-01", "00:00:00.000"],
    ]
    assert note == b"Table revenue has 2 rows; --limit shows more than 1.\n"
    show_rows(project, "revenue", 20, json=True)
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert [json.loads(line)["product"] for line in lines] == ["eggs", "hen"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("revenu", r"^the pipeline has no table or topic 'revenu'; did you mean revenue\?$"),
        ("nothing", r"^the pipeline has no table or topic 'nothing'; it has bad_orders, orders, orders\.bad, revenue$"),
        ("parsed", "^parsed is a temporary view, which keeps no rows"),
        ("bad_orders", r"^cannot read topic 'orders\.bad': no broker answers at 127\.0\.0\.1:1"),
        ("orders", r"^cannot read topic 'orders'"),
    ],
)
def test_what_cannot_be_shown_is_told_in_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    monkeypatch.setattr("skep.cli.spark.topic_ends.TIMEOUT_S", 0.1)
    with pytest.raises(CommandError, match=told):
        show_rows(project, name, 20, json=False)


def test_a_project_that_was_never_run_has_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="has not been run yet"):
        show_rows(load_project(write_project(tmp_path / "new", None), {}), "revenue", 20, json=False)


def test_tables_of_other_databases_have_their_own_folder(project: Project) -> None:
    tables = Path(project.storage.removeprefix("file://")) / "tables"
    assert table_folder(project, "revenue") == tables / "revenue"
    assert table_folder(project, "spark_catalog.sales.revenue") == tables / "sales.db" / "revenue"


def test_values_become_json() -> None:
    moment = datetime.datetime(2024, 5, 1, 12, 0, 0, 5)
    row = {
        "a": moment,
        "b": b"x",
        "c": b"\xff",
        "d": Decimal("1.5"),
        "e": [{"f": None}],
        "g": datetime.date(2024, 5, 1),
    }
    assert plain(row) == {
        "a": "2024-05-01 12:00:00.000005",
        "b": "x",
        "c": {"base64": "/w=="},
        "d": "1.5",
        "e": [{"f": None}],
        "g": "2024-05-01",
    }
