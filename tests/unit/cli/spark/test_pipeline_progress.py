"""What is made of the events of a run and of Spark's reports of batches: states, reasons, rows, lag."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skep.base.ids import TopicPartition
from skep.cli.spark.pipeline_graph import FlowGraph, add_sql, short_name
from skep.cli.spark.pipeline_progress import COMPLETED_AFTER_S, Flow, MicroBatch, RunProgress, batch_of, topic_offsets

CLICKS = "spark_catalog.default.clicks"


class Told:
    """Remembers what is shown, and is the clock."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now_s = 100.0

    def note(self, message: str) -> None:
        self.lines.append(message)

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        reason = f": {flow.reason}" if flow.has_failed else ""
        self.lines.append(f"{flow.name} {flow.state}{reason}")

    def counted(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        pass


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def progress(told: Told) -> RunProgress:
    return RunProgress(told, attempts=3, clock=lambda: told.now_s)


def test_events_of_flows_change_their_states(told: Told, progress: RunProgress) -> None:
    progress.event(f"Flow {CLICKS} is QUEUED.")
    progress.event(f"Flow {CLICKS} is STARTING.")
    told.now_s += 12
    progress.event(f"Flow {CLICKS} is RUNNING.")
    progress.event(f"Flow '{CLICKS}' has COMPLETED.")
    progress.event("Run is COMPLETED.")
    assert told.lines == ["clicks queued", "clicks starting", "clicks running", "clicks completed"]
    assert progress.flows["clicks"].seconds == 12


def test_a_stream_that_ended_with_an_error_is_never_called_completed(told: Told, progress: RunProgress) -> None:
    """Spark says COMPLETED of every query that has ended, and FAILED a second later, or before."""
    for _ in range(3):
        progress.event(f"Flow {CLICKS} is STARTING.")
        progress.event(f"Flow {CLICKS} is RUNNING.")
        progress.event(f"Flow {CLICKS} has COMPLETED.")
        progress.event(f"Flow '{CLICKS}' has FAILED.\nError: no broker responds at a:1")
        progress.event(f"Flow {CLICKS} has COMPLETED.")
        progress.tick()
    progress.end()
    again = ["clicks starting", "clicks running", "clicks retrying: no broker responds at a:1"]
    assert told.lines == [*again, *again, *again[:2], "clicks failed: no broker responds at a:1"]
    assert progress.flows["clicks"].attempts == 3
    assert progress.flows["clicks"].failed_s == 100.0


def test_a_flow_has_completed_when_another_one_starts_or_nothing_is_heard(told: Told, progress: RunProgress) -> None:
    progress.event("Flow a is RUNNING.")
    progress.event("Flow a has COMPLETED.")
    progress.tick()
    assert progress.flows["a"].state == "running"
    progress.event("Flow b is RUNNING.")
    assert progress.flows["a"].state == "completed"
    progress.event("Flow b has COMPLETED.")
    told.now_s += COMPLETED_AFTER_S
    progress.tick()
    assert progress.flows["b"].state == "completed"


def test_a_flow_that_is_retried_successfully_has_not_failed(progress: RunProgress) -> None:
    progress.event("Flow a is RUNNING.")
    progress.event("Flow 'a' has FAILED.\nError: x")
    failed = progress.failed_flow()
    assert failed is not None
    assert (failed.state, failed.reason) == ("retrying", "x")
    progress.event("Flow a is STARTING.")
    progress.event("Flow a is RUNNING.")
    progress.event("Flow a has COMPLETED.")
    progress.end()
    assert progress.failed_flow() is None
    assert progress.flows["a"].attempts == 2


def test_spark_says_when_it_does_not_try_again(progress: RunProgress) -> None:
    progress.event("Flow 'a' has FAILED more than 0 times and will not be restarted.\nError: x")
    assert progress.flows["a"].state == "failed"


def test_a_flow_that_cannot_be_resolved_has_failed_with_its_reason(progress: RunProgress) -> None:
    progress.event("Failed to resolve flow: 'spark_catalog.default.revenue'.\nError: [X] no table `ordres`.\n\nmore")
    progress.event("Failed to resolve flow due to upstream failure: 'spark_catalog.default.b'.\nError: x")
    assert {name: flow.state for name, flow in progress.flows.items()} == {"revenue": "failed", "b": "skipped"}
    assert progress.flows["revenue"].reason == "no table `ordres`"


def test_a_failure_names_the_file_in_which_the_flow_is_defined(progress: RunProgress) -> None:
    graph = FlowGraph(file="transformations/clicks.sql")
    add_sql(graph, "CREATE MATERIALIZED VIEW clicks AS SELECT * FROM nothing")
    progress.defined(FlowGraph.from_json(graph.complete().to_json()))
    progress.event(f"Failed to resolve flow: '{CLICKS}'.\nError: [TABLE_OR_VIEW_NOT_FOUND] There is no `nothing`.")
    failed = progress.failed_flow()
    assert failed is not None
    assert failed.failure == "flow clicks (transformations/clicks.sql) failed: There is no `nothing`"


def test_rows_are_added_up_over_batches_and_the_last_lag_counts(progress: RunProgress) -> None:
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    progress.batch(MicroBatch("a", 1500, 1200, 300, 9, {one: 5, two: 7}))
    progress.batch(MicroBatch("a", 500, 500, 0, 2, {one: 8}))
    flow = progress.flows["a"]
    assert (flow.rows_in, flow.rows_out, flow.bad_rows, flow.lag, flow.batches) == (2000, 1700, 300, 2, 2)
    assert flow.ends == {one: 8, two: 7}


def test_a_flow_without_batches_gets_its_numbers_when_it_has_completed(told: Told) -> None:
    def complete(flow: Flow) -> None:
        flow.rows_out = 3

    progress = RunProgress(told, complete=complete)
    progress.event("Flow view is RUNNING.")
    progress.batch(MicroBatch("stream", 5, None))
    for name in ("view", "stream"):
        progress.event(f"Flow {name} has COMPLETED.")
    progress.end()
    assert {name: flow.rows_out for name, flow in progress.flows.items()} == {"view": 3, "stream": None}


def test_a_name_in_another_database_stays_whole() -> None:
    assert short_name("spark_catalog.`default`.`a`") == "a"
    assert short_name("spark_catalog.sales.a") == "spark_catalog.sales.a"
    assert short_name("spark_catalog.sales.a", "spark_catalog.sales") == "a"


def _report(**changes: Any) -> dict[str, Any]:
    """As Spark 4.3 wrote it of a flow from a topic to a table."""
    orders = {"orders": {"id": "d48cc186-c466-4ef3-8da1-a659dbf92d71", "0": 12}}
    latest = {"orders": {"id": "d48cc186-c466-4ef3-8da1-a659dbf92d71", "0": 15, "1": 4}}
    return {
        "name": CLICKS,
        "batchId": 1,
        "numInputRows": 6,
        "sources": [{"startOffset": None, "endOffset": orders, "latestOffset": latest}],
        "sink": {"description": "FileSink[file:/shop/pipeline-storage/tables/orders]", "numOutputRows": -1},
        "observedMetrics": {"skep_bad_rows_1": {"skep_bad_rows": 2}, "mine": {"x": 9}},
        **changes,
    }


def test_the_rows_of_a_table_are_counted_in_its_files_and_bad_ones_by_a_metric() -> None:
    asked: list[tuple[Path, int]] = []

    def written(folder: Path, batch_id: int) -> int:
        asked.append((folder, batch_id))
        return 4

    batch = batch_of(_report(), written)
    assert batch == MicroBatch(CLICKS, 6, 4, 2, 3, {TopicPartition("orders", 0): 12})
    assert asked == [(Path("/shop/pipeline-storage/tables/orders"), 1)]


def test_the_rows_of_other_sinks_are_counted_by_spark() -> None:
    batch = batch_of(_report(sink={"description": "PythonTable@1", "numOutputRows": 2}), lambda folder, batch_id: 99)
    assert batch is not None
    assert batch.rows_out == 2


def test_what_is_not_known_stays_unknown() -> None:
    source = {"endOffset": {"logOffset": 1}, "latestOffset": None}
    batch = batch_of(_report(sink={"description": "Console"}, sources=[source], observedMetrics=None), lambda f, b: 1)
    assert batch == MicroBatch(CLICKS, 6, None, None, None, {})
    assert batch_of(_report(name=None), lambda f, b: 1) is None


def test_offsets_of_other_sources_are_none() -> None:
    assert topic_offsets({"logOffset": 3}) == topic_offsets("x") == topic_offsets(None) == {}
    started = {"t": {"id": "x", "0": 6, "started at": {"0": 0}}}
    assert topic_offsets(started) == {TopicPartition("t", 0): 6}
