"""The progress of a pipeline run: the states, rows and rates of its flows, as a live table or as lines.

States come from the events of Spark's pipeline run, which are plain sentences (``Flow x is RUNNING.``). Rows and rates
come from a listener of streaming queries: a flow's query has the flow's name. A flow that is not a stream (a
materialized view) has no query and therefore no rows.
"""

import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skep.cli import output

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_FLOW_EVENT = re.compile(
    r"^Flow '?(?P<flow>[^\s']+)'? .*?"
    r"(?P<state>QUEUED|PLANNING|STARTING|RUNNING|COMPLETED|FAILED|SKIPPED|EXCLUDED|STOPPED|IDLE)\b"
)
_UNRESOLVED = re.compile(
    r"^Failed to resolve flow(?P<upstream> due to upstream failure)?: '?(?P<flow>[^\s']+?)'?\.?$", re.M
)


@dataclass
class Flow:
    name: str
    state: str = "queued"
    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    reason: str | None = None

    @property
    def rate(self) -> str | None:
        if not self.rows or not self.seconds:
            return None
        slow = self.rows / self.seconds
        return f"{slow:.1f} rows/s" if slow < 10 else output.rate(self.rows, self.seconds, " rows")


class RunProgress:
    """The state of a run. Events and calls of the listener arrive on different threads, so a lock guards it."""

    def __init__(self, display: "Display") -> None:
        self.flows: dict[str, Flow] = {}
        self._display = display
        self._lock = threading.Lock()

    def event(self, message: str) -> None:
        """Handles an event of the pipeline run."""
        found = _FLOW_EVENT.match(message)
        with self._lock:
            unresolved = _UNRESOLVED.match(message)
            if found is None and unresolved is None:
                self._display.note(message)
                return
            if unresolved is not None:
                name, state = unresolved["flow"], "skipped" if unresolved["upstream"] else "failed"
            else:
                assert found is not None
                name, state = found["flow"], found["state"].lower()
            flow = self._flow(name)
            before, flow.state = flow.state, state
            if flow.state == "failed":
                _, _, reason = message.partition("\n")
                flow.reason = reason.removeprefix("Error: ").strip() or message
            if flow.state != before or flow.state == "queued":
                self._display.changed(flow, self.flows)

    def batch(self, name: str | None, rows: int, duration_ms: float) -> None:
        """Counts a finished micro-batch of the query ``name``."""
        if name is None:
            return
        with self._lock:
            flow = self._flow(name)
            flow.rows += rows
            flow.batches += 1
            flow.seconds += duration_ms / 1000
            self._display.counted(flow, self.flows)

    def _flow(self, name: str) -> Flow:
        short = short_name(name)
        return self.flows.setdefault(short, Flow(short))


def _batches(number: int) -> str:
    return "1 batch" if number == 1 else f"{number:,} batches"


def short_name(name: str) -> str:
    """Returns ``orders`` for ``spark_catalog.default.orders``: most pipelines use only the default database."""
    return name.replace("`", "").removeprefix("spark_catalog.default.")


class Display:
    """Prints a line for each change of state and each micro-batch of a flow with rows."""

    def start(self) -> None:
        pass

    def stop(self, flows: Mapping[str, Flow]) -> None:
        for flow in flows.values():
            if flow.rows:
                self._line(f"{flow.name}: {output.count(flow.rows, 'row')} in {_batches(flow.batches)}, {flow.rate}")

    def note(self, message: str) -> None:
        self._line(" ".join(message.split()))

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        self._line(f"{flow.name}: {flow.state}")

    def counted(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        if flow.rows:
            self._line(f"{flow.name}: {output.count(flow.rows, 'row')} so far, {flow.rate}")

    def _line(self, text: str) -> None:
        output.line(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")
        output.flush()


_STARTING = "Spark is starting."


class LiveDisplay(Display):
    """Draws a table on a terminal and updates it in place."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(console=None, refresh_per_second=4, transient=False)
        self._heading = _STARTING
        self._flows: Mapping[str, Flow] = {}

    def start(self) -> None:
        self._live.start()
        self._draw()

    def stop(self, flows: Mapping[str, Flow]) -> None:
        self._flows = flows
        self._draw()
        self._live.stop()

    def note(self, message: str) -> None:
        self._heading = " ".join(message.split())
        self._draw()

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        self._flows = flows
        # Spark itself reports the state of the run only at its end.
        if self._heading == _STARTING:
            self._heading = "Run is RUNNING."
        self._draw()

    counted = changed

    def _draw(self) -> None:
        self._live.update(table_of(self._heading, self._flows))


_COLOURS = {"running": "cyan", "completed": "green", "failed": "red", "skipped": "yellow"}


def table_of(heading: str, flows: Mapping[str, Flow]) -> "Table | Text":
    """Returns what to draw: the table, or only the heading while no flow is known."""
    from rich.table import Table
    from rich.text import Text

    if not flows:
        return Text(heading, style="italic")
    drawn = Table(title=heading, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column, side in (
        ("flow", "left"),
        ("state", "left"),
        ("rows", "right"),
        ("rate", "right"),
        ("batches", "right"),
    ):
        drawn.add_column(column, justify=side)  # type: ignore[arg-type]
    for flow in flows.values():
        drawn.add_row(
            flow.name,
            Text(flow.state, style=_COLOURS.get(flow.state, "")),
            f"{flow.rows:,}" if flow.batches else "-",
            flow.rate or "-",
            str(flow.batches) if flow.batches else "-",
        )
    return drawn


def display_for_stdout() -> Display:
    return LiveDisplay() if sys.stdout.isatty() else Display()


def listener_for(progress: RunProgress) -> Any:
    """Returns a StreamingQueryListener that updates ``progress``."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Rows(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            done = event.progress
            progress.batch(done.name, done.numInputRows, done.durationMs.get("triggerExecution", 0))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return Rows()
