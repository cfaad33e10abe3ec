"""The runs of a pipeline in one Spark session: one, one after another, or one whenever there are new records.

Spark's declarative pipelines process what is there and end; they have no trigger that goes on. So ``--continuous``
starts the next run as soon as a topic has grown. In a session that is warm a run takes a few seconds, of which Spark
waits one for each flow.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError
from skep.cli.spark.last_run import save_last_run, table_folder
from skep.cli.spark.pipeline_display import Display, duration
from skep.cli.spark.pipeline_graph import MATERIALIZED_VIEW, FlowGraph
from skep.cli.spark.pipeline_progress import Flow, RunProgress
from skep.cli.spark.pipeline_project import RETRIES, Project
from skep.cli.spark.pipeline_run import TICK_S, Selection, connected, run_graph
from skep.cli.spark.run_control import BrokerWatch, RunControl, Stopped, StopRequest
from skep.cli.spark.table_files import rows_of_table
from skep.cli.spark.topic_ends import ends_of, measure_lag

LOOK_EVERY_S = 1.0
"""How often --continuous asks the broker for new records."""
OTHER_SOURCES_EVERY_S = 5.0
"""How often --continuous runs a pipeline that also reads something else than topics."""


@dataclass(frozen=True)
class Schedule:
    """When to run again: never, ``every_s`` after the start of the last run, or when there are new records."""

    every_s: float | None = None
    continuous: bool = False


class PipelineRuns:
    """Owns what the runs of one command share: the project, the display, the signals, the broker watch."""

    def __init__(
        self,
        project: Project,
        display: Display,
        stop: StopRequest,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._project, self._display, self._stop, self._clock = project, display, stop, clock
        self._patience_s = patience_s
        self._watch: BrokerWatch | None = None
        self._start_took: str | None = None
        self._graph: FlowGraph | None = None
        self._ends: dict[TopicPartition, int] | None = None
        self._registered_s = 0.0

    def run(self, selection: Selection, schedule: Schedule, log: IO[bytes]) -> None:
        """Runs as scheduled. Raises CommandError if a run fails, Stopped if a signal ended it between batches."""
        self._display.start()
        try:
            with ExitStack() as stack:
                started_s = self._clock()
                with ticking(self._display, "Spark is starting"):
                    spark, settings = stack.enter_context(connected(self._project, log))
                self._start_took = f"; before, Spark took {duration(self._clock() - started_s)} to start"
                if self._project.bootstrap is not None:
                    cluster = Cluster(self._project.bootstrap, {**self._project.client, **_QUICK_RECONNECTS})
                    self._watch = stack.enter_context(BrokerWatch(cluster))
                self._repeat(selection, schedule, spark, settings)
        finally:
            self._stop.waits_for_a_batch = False
            self._display.close()

    def _repeat(self, selection: Selection, schedule: Schedule, spark: Any, settings: dict[str, str]) -> None:
        while True:
            started_s = self._clock()
            control = RunControl(self._stop, self._watch, self._patience_s)
            progress = self._one(selection, spark, settings, control)
            # What was asked to be computed again is not computed again in each run.
            selection = Selection(selection.refresh)
            if schedule.continuous:
                self._wait(progress, control, "Waiting for new records", self._has_new_records)
            elif schedule.every_s is not None:
                is_over = partial(self._has_passed, started_s + schedule.every_s)
                self._wait(progress, control, "Waiting for the next run", is_over)
            else:
                return

    def _one(self, selection: Selection, spark: Any, settings: dict[str, str], control: RunControl) -> RunProgress:
        """Runs once, shows and saves how it ended."""
        attempts = 1 + int(settings.get(RETRIES, "2"))
        database = f"{self._project.catalog or 'spark_catalog'}.{self._project.database or 'default'}"
        progress = RunProgress(self._display, attempts=attempts, complete=self._complete, database=database)
        started_s = self._clock()
        self._stop.waits_for_a_batch = False
        registration = ExitStack()

        def registered(graph: FlowGraph) -> None:
            registration.close()
            self._registered(graph)
            # From here on the first signal waits for the end of a batch.
            self._stop.waits_for_a_batch = True

        def tick() -> None:
            progress.tick()
            self._display.tick(progress.flows, "Spark prepares the tables")
            control.check(progress)

        try:
            with registration:
                registration.enter_context(ticking(self._display, "Spark reads the definitions"))
                run_graph(self._project, selection, progress, spark, settings, registered=registered, tick=tick)
        except Stopped as stopped:
            self._ended(progress, "stopped", str(stopped))
            raise
        except KeyboardInterrupt:
            began = "at once. The next run repeats the batch that was not done" if progress.flows else "before the run"
            self._ended(progress, "stopped", f"Stopped {began}.")
            raise
        except CommandError:
            self._ended(progress, "failed", f"The run failed after {duration(self._clock() - started_s)}.")
            raise
        took = duration(self._clock() - started_s)
        if self._project.bootstrap is not None:
            measure_lag(self._project.bootstrap, progress.flows.values(), self._project.client)
        self._ended(progress, "completed", f"The run completed in {took}{self._start_took or ''}.")
        self._start_took = None
        return progress

    def _ended(self, progress: RunProgress, state: str, summary: str) -> None:
        flows = list(progress.flows.values())
        if self._graph is not None:
            order = {flow.name: number for number, flow in enumerate(self._graph.flows)}
            flows.sort(key=lambda flow: order.get(flow.name, len(order)))
        self._display.ended(state, summary, flows)
        if self._graph is not None and flows:
            save_last_run(self._project, self._graph, flows, summary)

    def _registered(self, graph: FlowGraph) -> None:
        """Called before Spark looks up where topics end: what comes later is new for the next run."""
        self._graph = graph
        if self._project.bootstrap is not None:
            self._ends = ends_of(self._project.bootstrap, graph.source_topics, self._project.client)
        self._registered_s = self._clock()

    def _has_passed(self, moment_s: float) -> bool:
        return self._clock() >= moment_s

    def _has_new_records(self) -> bool:
        assert self._graph is not None
        if self._project.bootstrap is None or self._graph.has_other_sources:
            return self._clock() - self._registered_s >= OTHER_SOURCES_EVERY_S
        ends = ends_of(self._project.bootstrap, self._graph.source_topics, self._project.client)
        # While the broker does not answer, the control decides how long to wait.
        return ends is not None and ends != self._ends

    def _wait(self, progress: RunProgress, control: RunControl, what: str, is_over: Callable[[], bool]) -> None:
        """Returns when ``is_over``, which may take seconds and is asked once a second."""
        asked_s = -math.inf
        self._display.waits(what)
        while True:
            if self._clock() - asked_s >= LOOK_EVERY_S:
                if is_over():
                    return
                asked_s = self._clock()
            try:
                control.check(progress)
            except Stopped as stopped:
                self._display.note(str(stopped))
                raise
            time.sleep(TICK_S)

    def _complete(self, flow: Flow) -> None:
        """Adds the numbers of a flow that had no micro-batch: a stream without new records, or a materialized view."""
        edge = next((one for one in self._graph.flows if one.name == flow.name), None) if self._graph else None
        if edge is None:
            return
        if self._graph and self._graph.datasets[edge.target].kind == MATERIALIZED_VIEW:
            folder = table_folder(self._project, edge.target)
            flow.rows_out = rows_of_table(folder) if folder is not None else None
        else:
            flow.rows_in = flow.rows_out = 0


_QUICK_RECONNECTS = {"reconnect.backoff.max.ms": "1000"}
"""librdkafka waits up to ten seconds by default before it connects again."""


@contextmanager
def ticking(display: Display, what: str) -> Iterator[None]:
    """Calls the display from a thread, while the main thread is busy with ``what``."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1):
            display.tick({}, what)

    thread = threading.Thread(target=tick, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
