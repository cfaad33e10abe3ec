"""How a run is shown: on a terminal as one table that changes in its place, elsewhere as lines that are added."""

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.table import Table

from skep.cli.spark.pipeline_display import Display, duration, table_of
from skep.cli.spark.pipeline_progress import Flow
from tests.waiting import wait_until

PROGRAM = [sys.executable, str(Path(__file__).with_name("shown_run.py"))]
SOURCES = str(Path(__file__).parents[4] / "src")
WIDTH, HEIGHT = 60, 20
_PIECE = re.compile(
    r"\x1b\[(?P<number>\d*)(?P<up>A)|(?P<erased>\x1b\[2K)|(?P<style>\x1b\[[\d;]*m)|(?P<cursor>\x1b\[\?25[lh])"
)
ORDERS = "spark_catalog.default.orders"


class Screen:
    """What a person sees on a terminal, as far as rich's Live makes use of one."""

    def __init__(self) -> None:
        self._lines = [""]
        self._row = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if found := _PIECE.match(text, at):
                at = found.end()
                if found["up"]:
                    self._row -= int(found["number"] or 1)
                elif found["erased"]:
                    self._lines[self._row] = ""
                continue
            letter, at = text[at], at + 1
            assert letter != "\x1b", f"a terminal is asked for more than it can here: {text[at - 1 : at + 9]!r}"
            if letter == "\n":
                self._row += 1
                self._lines += [""] * (self._row + 1 - len(self._lines))
            elif letter != "\r":
                self._lines[self._row] += letter

    @property
    def words(self) -> list[str]:
        """The lines that are not empty, with single spaces."""
        return [" ".join(line.split()) for line in self._lines if line.strip()]


class Run:
    """The program with a terminal as its standard output."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int) -> None:
        self.raw = b""
        self._process = process
        self._reading = threading.Thread(target=self._read, args=(terminal,), daemon=True)
        self._reading.start()

    def _read(self, terminal: int) -> None:
        while True:
            try:
                self.raw += os.read(terminal, 1 << 16)
            except OSError:  # how Linux tells the end of a terminal
                return

    def tell(self, *step: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(step).encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._reading.join()

    def shown(self) -> list[str]:
        screen = Screen()
        # A sequence that is not all there yet waits for its rest.
        screen.feed(re.sub(r"\x1b[^A-Za-z]*\Z", "", self.raw.decode(errors="ignore")))
        return screen.words

    def shows(self, *lines: str) -> None:
        wait_until(lambda: self.shown() == list(lines), lambda: f"{list(lines)} is shown, but {self.shown()}")


@contextmanager
def _on_a_terminal() -> Iterator[Run]:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"PYTHONPATH": SOURCES, "TERM": "xterm"}
    with subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=theirs, env=environment) as process:
        os.close(theirs)
        try:
            yield Run(process, ours)
        finally:
            process.kill()
    os.close(ours)


def test_a_terminal_has_one_table_of_flows_with_states_and_rows() -> None:
    heads = "flow state rows in rows out bad lag time"
    with _on_a_terminal() as run:
        run.shows("Spark is starting; with the first run, 30 s to 3 min.")
        run.tell("event", f"Flow {ORDERS} is QUEUED.")
        run.shows("Running.", heads, "orders queued - - - - -")
        run.tell("event", f"Flow {ORDERS} is RUNNING.")
        run.shows("Running.", heads, "orders running - - - - 0.0 s")
        run.tell("batch", "orders", 1500, 1200, 300, 7)
        run.shows("Running.", heads, "orders running 1,500 1,200 300 7 0.0 s")
        run.tell("event", "Flow spark_catalog.default.revenue is QUEUED.")
        run.shows("Running.", heads, "orders running 1,500 1,200 300 7 0.0 s", "revenue queued - - - - -")
        run.tell("batch", "orders", 500, 500, 0, 0)
        run.tell("event", f"Flow {ORDERS} has COMPLETED.")
        run.tell("event", "Flow spark_catalog.default.revenue has FAILED.\nError: no table")
        run.end()
        # The reason is above the table, which stays when the run is over.
        assert run.shown() == [
            "revenue: failed: no table",
            "The run is over.",
            heads,
            "orders completed 2,000 1,700 300 0 0.0 s",
            "revenue failed - - - - -",
        ]
        # Red, as rich says it.
        assert b"\x1b[31mfailed" in run.raw


STEPS = [
    ("event", f"Flow {ORDERS} is QUEUED."),
    ("event", f"Flow {ORDERS} is RUNNING."),
    ("event", f"Flow {ORDERS} is RUNNING."),
    ("batch", "orders", 0),
    ("batch", "orders", 1500, 1200, 300, 7),
    ("event", f"Flow {ORDERS} has COMPLETED."),
    ("event", "Run is COMPLETED."),
]


def _printed(*options: str) -> list[str]:
    told = "".join(json.dumps(step) + "\n" for step in STEPS)
    environment = {**os.environ, "PYTHONPATH": SOURCES, "TERM": "xterm"}
    ran = subprocess.run(
        [*PROGRAM, *options], input=told, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


def test_where_there_is_no_terminal_each_change_is_a_line_and_the_table_is_at_the_end() -> None:
    *lines, head, row, last = _printed()
    times, words = zip(*(line.split("  ", 1) for line in [*lines, last]), strict=True)
    assert list(words) == [
        "Spark is starting; with the first run, 30 s to 3 min.",
        "orders: queued",
        "orders: running",
        "orders: 1,500 rows in, 1,200 rows out, 300 bad, lag 7",
        "orders: completed",
        "The run is over.",
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", moment) for moment in times)
    assert head.split() == ["flow", "state", "rows", "in", "rows", "out", "bad", "lag", "time"]
    assert row.split() == ["orders", "completed", "1,500", "1,200", "300", "7", "0.0", "s"]


def test_for_scripts_a_run_is_one_object() -> None:
    [line] = _printed("--json")
    assert json.loads(line) == {
        "run": "completed",
        "summary": "The run is over.",
        "flows": [
            {
                "flow": "orders",
                "state": "completed",
                "rows_in": 1500,
                "rows_out": 1200,
                "bad_rows": 300,
                "lag": 7,
                "batches": 2,
                "seconds": 0.0,
            }
        ],
    }


class Lines(Display):
    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(lambda: self.now_s)
        self.lines: list[str] = []

    def _line(self, text: str) -> None:
        self._printed_s = self.now_s
        self.lines.append(text)


def test_a_line_comes_at_least_every_five_seconds() -> None:
    display = Lines()
    for _ in range(24):
        display.tick({}, "Spark is starting")
        display.now_s += 0.5
    assert display.lines == ["Spark is starting (5.0 s)", "Spark is starting (10 s)"]
    flow = Flow("orders", "running", rows_in=6, seconds=3.0)
    display.now_s += 5
    display.tick({"orders": flow, "other": Flow("other")}, "nothing")
    assert display.lines[2:] == ["orders: running, 3.0 s, 6 rows in"]


def test_each_run_waits_from_its_own_start() -> None:
    display = Lines()
    display.tick({}, "Spark prepares the tables")
    display.now_s = 20.0
    display.ended("completed", "The run completed in 20 s.", [])
    display.now_s = 60.0
    display.tick({}, "Spark prepares the tables")
    assert display.lines[-1] == "Spark prepares the tables (0.0 s)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (52.3, "52 s"), (119, "119 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_table_has_a_row_for_each_flow() -> None:
    drawn = table_of("Running.", {"a": Flow("a"), "b": Flow("b", "running", 5, 1)})
    assert isinstance(drawn, Table)
    assert drawn.row_count == 2
    assert str(table_of("starting Spark", {})) == "starting Spark"
