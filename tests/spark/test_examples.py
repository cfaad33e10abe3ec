"""An example and the demo wholly as a reader runs them. The other examples are in ``test_pipelines``, in one Spark."""

import json
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from skep.testing import EmbeddedBroker
from tests.spark.pipelining import ROOT, RUN_TIMEOUT_S, environment, records, table
from tests.spark.printed_example import RUN, PrintedExample

pytestmark = [pytest.mark.xdist_group("spark-pipelines"), pytest.mark.timeout(900)]


def test_orders_are_enriched_and_bad_ones_go_to_dead_letters_with_reason_and_origin(tmp_path: Path) -> None:
    # As `skep serve` starts one: a partition for a topic that is made without a number.
    with EmbeddedBroker() as broker:
        example = PrintedExample("enrichment", tmp_path, broker.bootstrap_servers)
        example.up_to_a_run()
        letters = [json.loads(line) for line in example.the_rest()]
        sold = sorted(json.loads(record.value or "")["id"] for record in records(broker.bootstrap_servers, "sales"))
        revenue = table(example.project, "revenue")
        # In the next run the products of this one are there, and are emptied before they are filled again.
        example.do("skep produce orders < data/orders.jsonl")
        example.do(RUN)
        assert len(records(broker.bootstrap_servers, "orders.bad")) == 2 * len(letters)
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


def _environment_of_make(folder: Path) -> Path:
    """What `make` takes for a virtual environment that has everything, and runs this Python."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for stamp in (".run", ".spark", ".dev"):
        (folder / "venv" / stamp).touch()
    return folder / "venv"


STORY = (
    r"A broker runs on 127\.0\.0\.1:\d+: started in ",
    r"\$ skep topics create clicks ",
    r".* round 1 of 1 ",
    r"\$ skep produce clicks ",
    r"\$ skep pipeline run ",
    r".* clicks: 200 rows in, ",
    r".* The run completed in ",
    r".* results ",
    r"The most popular pages, from Parquet top_pages \(",
    r" home ",
    r"The longest visits, from topic sessions \(5 of \d+ rows, the largest first\)",
    r"The busiest minutes, from topic page-views \(5 of \d+ rows, the largest first\)",
    r"200 clicks were sent, and Parquet clicks has 200 rows: each click once\.",
    r"The demo took \d+ s",
)


def test_the_demo_tells_its_story(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["make", "demo", f"VENV={_environment_of_make(tmp_path)}", "ARGS=--rounds 1 --clicks 200"],
        cwd=ROOT,
        env={**environment(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=2 * RUN_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = iter(ran.stdout.splitlines())
    for part in STORY:
        assert any(re.match(part, line) for line in lines), f"{part} is missing, or late:\n{ran.stdout}"
    assert not list(tmp_path.glob("skep-demo-*")), "all of it is gone"
