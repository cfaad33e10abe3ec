"""The progress of a pipeline run: for each flow its state, rows in and out, bad rows, lag and time.

States come from the events of Spark's pipeline run, which are plain sentences (``Flow x is RUNNING.``). Two of them
need care. Spark says that a stream ``has COMPLETED`` when its query has ended, also if it ended with an error, and says
``has FAILED`` about a second later; so a flow counts as completed when the next event is not its failure. And a failure
may be one of several attempts: until the last one the flow is ``retrying``.

Numbers come from a listener of streaming queries: a flow's query has the flow's name. A flow that is not a stream (a
materialized view) has no query: its rows are counted in its files when it has completed.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from skep.base.ids import TopicPartition
from skep.cli.spark.pipeline_graph import DEFAULT_DATABASE, FlowGraph, short_name
from skep.cli.spark.spark_failures import one_line

_FLOW_EVENT = re.compile(
    r"^Flow '?(?P<flow>[^\s']+)'? .*?"
    r"(?P<state>QUEUED|PLANNING|STARTING|RUNNING|COMPLETED|FAILED|SKIPPED|EXCLUDED|STOPPED|IDLE)\b"
)
_UNRESOLVED = re.compile(
    r"^Failed to resolve flow(?P<upstream> due to upstream failure)?: '?(?P<flow>[^\s']+?)'?\.?$", re.M
)
_LAST_FAILURE = "will not be restarted"
ACTIVE = ("planning", "starting", "running", "retrying")
COMPLETED_AFTER_S = 3.0
"""How long a failure may follow the sentence that a flow has completed. Spark looks for failures once a second."""


@dataclass(frozen=True)
class MicroBatch:
    """A finished micro-batch of a flow. None stands for numbers that are not known."""

    flow: str
    rows_in: int
    rows_out: int | None = None
    bad_rows: int | None = None
    lag: int | None = None
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Up to where the topics are read."""


@dataclass
class Flow:
    name: str
    state: str = "queued"
    rows_in: int | None = None
    rows_out: int | None = None
    bad_rows: int | None = None
    lag: int | None = None
    batches: int = 0
    seconds: float = 0.0
    attempts: int = 1
    reason: str | None = None
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    started_s: float | None = None
    failed_s: float | None = None
    """When it failed for the first time."""
    completed_s: float | None = None
    """When Spark said that the flow has completed, while that is not certain."""
    file: str = ""
    """Where it is defined; empty if that is not known."""

    def count(self, batch: MicroBatch) -> None:
        self.batches += 1
        self.rows_in = (self.rows_in or 0) + batch.rows_in
        if batch.rows_out is not None:
            self.rows_out = (self.rows_out or 0) + batch.rows_out
        if batch.bad_rows is not None:
            self.bad_rows = (self.bad_rows or 0) + batch.bad_rows
        self.lag = batch.lag
        self.ends |= batch.ends

    @property
    def has_failed(self) -> bool:
        return self.state in ("failed", "retrying")

    @property
    def failure(self) -> str:
        """Returns why it failed, with its name and its file."""
        place = f" ({self.file})" if self.file else ""
        return f"flow {self.name}{place} failed: {self.reason or 'Spark gave no reason'}"


class Shown(Protocol):
    """What displays a run."""

    def note(self, message: str) -> None: ...
    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None: ...
    def counted(self, flow: Flow, flows: Mapping[str, Flow]) -> None: ...


class RunProgress:
    """The state of a run. Events and calls of the listener arrive on different threads, so a lock guards it."""

    def __init__(
        self,
        display: Shown,
        *,
        attempts: int = 1,
        clock: Callable[[], float] = time.monotonic,
        complete: Callable[[Flow], None] = lambda flow: None,
        database: str = DEFAULT_DATABASE,
    ) -> None:
        """``attempts`` is how often Spark tries a flow; ``complete`` adds the numbers of one without micro-batches.

        ``database`` is where the pipeline's tables are; names of flows are shown without it.
        """
        self.flows: dict[str, Flow] = {}
        self._files: dict[str, str] = {}
        self._attempts = attempts
        self._display = display
        self._clock = clock
        self._complete = complete
        self._database = database
        self._lock = threading.RLock()

    def defined(self, graph: FlowGraph) -> None:
        """Called when the definitions are read: a failure names the file of its flow."""
        self._files = {short_name(flow.name, self._database): flow.file for flow in graph.flows}

    def event(self, message: str) -> None:
        """Handles an event of the pipeline run."""
        found, unresolved = _FLOW_EVENT.match(message), _UNRESOLVED.match(message)
        with self._lock:
            if unresolved is not None:
                self._settle()
                self._failed(self._flow(unresolved["flow"]), message, upstream=unresolved["upstream"] is not None)
            elif found is None:
                self._settle()
                # The end of the run is what the last table says.
                if not message.startswith("Run is "):
                    self._display.note(message)
            else:
                flow = self._flow(found["flow"])
                self._settle(but=flow)
                self._state(flow, found["state"].lower(), message)

    def _state(self, flow: Flow, state: str, message: str) -> None:
        if state == "failed":
            flow.completed_s = None
            self._failed(flow, message)
        elif state == "completed":
            # After "failed" it is the late news of the end of that attempt.
            if not flow.has_failed:
                flow.completed_s = self._clock()
        else:
            flow.completed_s = None
            if state == "starting" and flow.state == "retrying":
                flow.attempts += 1
            if state in ACTIVE and flow.started_s is None:
                flow.started_s = self._clock()
            self._change(flow, state, anyway=state == "queued")

    def _change(self, flow: Flow, state: str, *, anyway: bool = False) -> None:
        before, flow.state = flow.state, state
        if state != before or anyway:
            self._display.changed(flow, self.flows)

    def _failed(self, flow: Flow, message: str, *, upstream: bool = False) -> None:
        if upstream:
            self._change(flow, "skipped")
            return
        sentence, _, reason = message.partition("\n")
        flow.reason = one_line(reason.removeprefix("Error: ").strip() or message)
        self._time(flow)
        if flow.failed_s is None:
            flow.failed_s = self._clock()
        last = flow.attempts >= self._attempts or _LAST_FAILURE in sentence or sentence.startswith("Failed to resolve")
        self._change(flow, "failed" if last else "retrying", anyway=True)

    def _settle(self, *, but: Flow | None = None, now_s: float | None = None) -> None:
        """Believes that flows have completed: all but one, or those of which nothing was heard for a while."""
        for flow in self.flows.values():
            if flow.completed_s is None or flow is but:
                continue
            if now_s is None or now_s - flow.completed_s >= COMPLETED_AFTER_S:
                flow.completed_s = None
                self._time(flow)
                if not flow.batches:
                    self._complete(flow)
                self._change(flow, "completed")

    def tick(self) -> None:
        """Called several times a second."""
        with self._lock:
            self._settle(now_s=self._clock())
            for flow in self.flows.values():
                if flow.state in ACTIVE:
                    self._time(flow)

    def end(self) -> None:
        """Called when Spark sends no more events."""
        with self._lock:
            self._settle()

    def batch(self, batch: MicroBatch) -> None:
        """Counts a finished micro-batch."""
        with self._lock:
            flow = self._flow(batch.flow)
            flow.count(batch)
            self._display.counted(flow, self.flows)

    def note(self, message: str) -> None:
        """Shows a sentence that is not about a flow."""
        with self._lock:
            self._display.note(message)

    def failed_flow(self) -> Flow | None:
        """Returns the first flow that has failed and was not retried successfully."""
        with self._lock:
            return next((flow for flow in self.flows.values() if flow.has_failed), None)

    def _time(self, flow: Flow) -> None:
        if flow.started_s is not None:
            flow.seconds = self._clock() - flow.started_s

    def _flow(self, name: str) -> Flow:
        short = short_name(name, self._database)
        return self.flows.setdefault(short, Flow(short, file=self._files.get(short, "")))


def batch_of(progress: Mapping[str, Any], rows_written: Callable[[Path, int], int | None]) -> MicroBatch | None:
    """Returns the batch of a QueryProgress, which is JSON of Spark. None if the query has no name.

    ``rows_written`` counts the rows of a batch in the folder of a table; Spark counts only those of other sinks.
    """
    name = progress.get("name")
    if not name:
        return None
    sink = progress.get("sink") or {}
    rows_out = sink.get("numOutputRows", -1)
    if rows_out < 0:
        folder = re.fullmatch(r"FileSink\[(?:file:)?(/.*)\]", sink.get("description", ""))
        rows_out = rows_written(Path(folder[1]), int(progress["batchId"])) if folder else None
    metrics = (progress.get("observedMetrics") or {}).items()
    bad = [sum(value.values()) for metric, value in metrics if metric.startswith("skep_bad_rows")]
    ends: dict[TopicPartition, int] = {}
    behind = []
    for source in progress.get("sources") or ():
        read = topic_offsets(source.get("endOffset"))
        latest = topic_offsets(source.get("latestOffset"))
        behind += [latest[one] - end for one, end in read.items() if one in latest]
        ends |= read
    rows_in = int(progress.get("numInputRows", 0))
    return MicroBatch(name, rows_in, rows_out, sum(bad) if bad else None, sum(behind) if behind else None, ends)


def topic_offsets(offsets: Any) -> dict[TopicPartition, int]:
    """Returns the offsets of ``{"orders": {"id": ..., "0": 6}}``, as Skep's source writes them; of others none."""
    if not isinstance(offsets, dict):
        return {}
    return {
        TopicPartition(topic, int(number)): offset
        for topic, entry in offsets.items()
        if isinstance(entry, dict)
        for number, offset in entry.items()
        if number.isdecimal() and isinstance(offset, int)
    }
