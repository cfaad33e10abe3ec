"""How a pipeline run is shown: a table that is updated in place on a terminal, lines in a pipe, JSON for scripts.

Each ends with the same table: how every flow ended, and its numbers. In a pipe a line is printed at least every five
seconds, so that a log shows that the run is alive.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skep.cli import output
from skep.cli.spark.pipeline_progress import ACTIVE, Flow

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

LINE_EVERY_S = 5.0
STARTING = "Spark is starting, which takes 10 to 30 s."
STARTING_A_RUN = "Spark is starting; with the first run, 30 s to 3 min."
"""A run in a new session is slow, so the time of the start alone would promise too much."""
COLUMNS = ("flow", "state", "rows in", "rows out", "bad", "lag", "time")
_NUMBERS = COLUMNS[2:]
_COLOURS = {"running": "cyan", "completed": "green", "failed": "red", "retrying": "red", "skipped": "yellow"}


def cells(flow: Flow) -> list[str]:
    numbers = (flow.rows_in, flow.rows_out, flow.bad_rows, flow.lag)
    shown = ["-" if number is None else f"{number:,}" for number in numbers]
    return [flow.name, flow.state, *shown, duration(flow.seconds) if flow.started_s is not None else "-"]


def duration(seconds: float) -> str:
    """Returns ``0.4 s``, ``52 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def figures(flow: Flow) -> str:
    """Returns the numbers that are known: ``6 rows in, 4 rows out, 2 bad, lag 0``."""
    parts = [
        output.count(flow.rows_in, "row") + " in" if flow.rows_in is not None else "",
        output.count(flow.rows_out, "row") + " out" if flow.rows_out is not None else "",
        f"{flow.bad_rows:,} bad" if flow.bad_rows is not None else "",
        f"lag {flow.lag:,}" if flow.lag is not None else "",
    ]
    return ", ".join(filter(None, parts))


def flow_document(flow: Flow) -> dict[str, Any]:
    """Returns a flow as JSON."""
    return {
        "flow": flow.name,
        "state": flow.state,
        "rows_in": flow.rows_in,
        "rows_out": flow.rows_out,
        "bad_rows": flow.bad_rows,
        "lag": flow.lag,
        "batches": flow.batches,
        "seconds": round(flow.seconds, 1),
        **({"attempts": flow.attempts} if flow.attempts > 1 else {}),
        **({"reason": flow.reason} if flow.reason else {}),
    }


class Display:
    """Prints a line for each change of state, for each micro-batch with rows, and every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._printed_s = clock()
        self._waiting: tuple[str, float] = ("", clock())
        """What is waited for, and since when."""

    def start(self) -> None:
        self._line(STARTING_A_RUN)

    def close(self) -> None:
        """Called once, when nothing more is shown."""

    def waits(self, what: str) -> None:
        """Shows that nothing runs. A log of a command that goes on gets one line, not one every few seconds."""
        self._line(f"{what}.")

    def ended(self, state: str, summary: str, flows: Sequence[Flow]) -> None:
        """Shows how a run ended: ``completed``, ``failed`` or ``stopped``. ``summary`` is a sentence."""
        if flows:
            output.table(COLUMNS, [cells(flow) for flow in flows], right=_NUMBERS)
        self._waiting = ("", self._clock())  # the next run waits for the same, from its own start
        self._line(summary)

    def note(self, message: str) -> None:
        self._line(" ".join(message.split()))

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        reason = f": {flow.reason}" if flow.reason and flow.state in ("failed", "retrying") else ""
        self._line(f"{flow.name}: {flow.state}{reason}")

    def counted(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        if flow.rows_in:
            self._line(f"{flow.name}: {figures(flow)}")

    def tick(self, flows: Mapping[str, Flow], waiting_for: str) -> None:
        """Called several times a second. ``waiting_for`` is what the command does if no flow is active."""
        if waiting_for != self._waiting[0]:
            self._waiting = (waiting_for, self._clock())
        if self._clock() - self._printed_s < LINE_EVERY_S:
            return
        active = [flow for flow in flows.values() if flow.state in ACTIVE]
        for flow in active:
            self._line(f"{flow.name}: {', '.join(filter(None, (flow.state, duration(flow.seconds), figures(flow))))}")
        if not active:
            self._line(f"{waiting_for} ({duration(self._clock() - self._waiting[1])})")

    def _line(self, text: str) -> None:
        self._printed_s = self._clock()
        output.line(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")
        output.flush()


class JsonDisplay(Display):
    """Prints one JSON object for each run, when it has ended."""

    def ended(self, state: str, summary: str, flows: Sequence[Flow]) -> None:
        documents = [flow_document(flow) for flow in flows]
        output.write(output.json_bytes({"run": state, "summary": summary, "flows": documents}))
        output.flush()

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        pass

    counted = changed

    def tick(self, flows: Mapping[str, Flow], waiting_for: str) -> None:
        pass

    def _line(self, text: str) -> None:
        pass


class LiveDisplay(Display):
    """Draws a table on a terminal and updates it in place. Sentences are printed above it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.live import Live

        super().__init__(clock)
        self._live = Live(console=None, refresh_per_second=4, transient=False)
        self._heading = STARTING_A_RUN
        self._flows: Mapping[str, Flow] = {}

    def start(self) -> None:
        self._live.start()
        self._draw()

    def close(self) -> None:
        self._live.stop()

    def waits(self, what: str) -> None:
        self._heading = f"{what}."
        self._draw()

    def ended(self, state: str, summary: str, flows: Sequence[Flow]) -> None:
        self._heading, self._flows = summary, {flow.name: flow for flow in flows}
        self._draw()

    def note(self, message: str) -> None:
        self._live.console.print(" ".join(message.split()), highlight=False, markup=False)

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        self._flows = flows
        self._heading = "Running."
        if flow.reason and flow.state in ("failed", "retrying"):
            self.note(f"{flow.name}: {flow.state}: {flow.reason}")
        self._draw()

    def counted(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        self._flows = flows
        self._draw()

    def tick(self, flows: Mapping[str, Flow], waiting_for: str) -> None:
        # The times of the flows go on.
        self._draw()

    def _draw(self) -> None:
        self._live.update(table_of(self._heading, self._flows))


def table_of(heading: str, flows: Mapping[str, Flow]) -> "Table | Text":
    """Returns what to draw: the table, or only the heading while no flow is known."""
    from rich.table import Table
    from rich.text import Text

    if not flows:
        return Text(heading, style="italic")
    drawn = Table(title=heading, title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in COLUMNS:
        drawn.add_column(column, justify="right" if column in _NUMBERS else "left")
    for flow in flows.values():
        name, state, *numbers = cells(flow)
        drawn.add_row(name, Text(state, style=_COLOURS.get(state, "")), *numbers)
    return drawn


def display_for_stdout(*, json: bool = False) -> Display:
    return JsonDisplay() if json else LiveDisplay() if sys.stdout.isatty() else Display()
