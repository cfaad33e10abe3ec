"""What is made of the events of a run: states, rows, rates, and the lines for a log."""

import pytest
from rich.table import Table

from skep.cli.spark.pipeline_progress import Display, Flow, RunProgress, short_name, table_of


class Remembering(Display):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def _line(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def display() -> Remembering:
    return Remembering()


def test_events_of_flows_change_their_states(display: Remembering) -> None:
    progress = RunProgress(display)
    progress.event("Flow spark_catalog.default.clicks is QUEUED.")
    progress.event("Flow spark_catalog.default.clicks is RUNNING.")
    progress.event("Flow 'spark_catalog.default.clicks' has COMPLETED.")
    progress.event("Run is COMPLETED.")
    assert progress.flows["clicks"].state == "completed"
    assert display.lines == ["clicks: queued", "clicks: running", "clicks: completed", "Run is COMPLETED."]


def test_a_flow_that_cannot_be_resolved_has_failed_with_its_reason(display: Remembering) -> None:
    progress = RunProgress(display)
    progress.event("Failed to resolve flow: 'spark_catalog.default.revenue'.\nError: [X] no table `ordres`.\nmore")
    progress.event("Failed to resolve flow due to upstream failure: 'spark_catalog.default.b'.\nError: x")
    assert {name: flow.state for name, flow in progress.flows.items()} == {"revenue": "failed", "b": "skipped"}
    assert progress.flows["revenue"].reason == "[X] no table `ordres`.\nmore"


def test_rows_and_rates_are_added_up_over_batches(display: Remembering) -> None:
    progress = RunProgress(display)
    progress.batch("spark_catalog.default.clicks", 1500, 500.0)
    progress.batch("spark_catalog.default.clicks", 500, 500.0)
    progress.batch(None, 7, 1.0)
    flow = progress.flows["clicks"]
    assert (flow.rows, flow.batches, flow.rate) == (2000, 2, "2.00 k rows/s")
    display.stop(progress.flows)
    assert display.lines[-1] == "clicks: 2,000 rows in 2 batches, 2.00 k rows/s"


def test_a_name_in_another_database_stays_whole() -> None:
    assert short_name("spark_catalog.`default`.`a`") == "a"
    assert short_name("spark_catalog.sales.a") == "spark_catalog.sales.a"


def test_the_table_has_a_row_for_each_flow() -> None:
    drawn = table_of("Run is RUNNING.", {"a": Flow("a"), "b": Flow("b", "running", 5, 1, 2.0)})
    assert isinstance(drawn, Table)
    assert drawn.row_count == 2
    assert str(table_of("starting Spark", {})) == "starting Spark"
