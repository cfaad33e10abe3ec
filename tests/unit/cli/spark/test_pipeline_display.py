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

from tests.waiting import wait_until

PROGRAM = [sys.executable, str(Path(__file__).with_name("shown_run.py"))]
SOURCES = str(Path(__file__).parents[3] / "src")
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


def test_a_terminal_has_one_table_of_flows_with_states_rows_and_rates() -> None:
    heads = "flow state rows rate batches"
    with _on_a_terminal() as run:
        run.shows("Spark is starting.")
        run.tell("event", f"Flow {ORDERS} is QUEUED.")
        run.shows("Run is RUNNING.", heads, "orders queued - - -")
        run.tell("event", f"Flow {ORDERS} is RUNNING.")
        run.shows("Run is RUNNING.", heads, "orders running - - -")
        run.tell("batch", ORDERS, 1500, 500.0)
        run.shows("Run is RUNNING.", heads, "orders running 1,500 3.00 k rows/s 1")
        run.tell("event", "Flow spark_catalog.default.revenue is QUEUED.")
        run.shows("Run is RUNNING.", heads, "orders running 1,500 3.00 k rows/s 1", "revenue queued - - -")
        run.tell("batch", ORDERS, 500, 500.0)
        run.tell("event", f"Flow {ORDERS} has COMPLETED.")
        run.tell("event", "Flow spark_catalog.default.revenue has FAILED.\nError: no table")
        run.tell("event", "Run is FAILED.")
        run.end()
        # It stays when the run is over.
        assert run.shown() == [
            "Run is FAILED.",
            heads,
            "orders completed 2,000 2.00 k rows/s 2",
            "revenue failed - - -",
        ]
        # Red, as rich says it.
        assert b"\x1b[31mfailed" in run.raw


def test_where_there_is_no_terminal_each_change_is_a_line() -> None:
    steps = [
        ("event", f"Flow {ORDERS} is QUEUED."),
        ("event", f"Flow {ORDERS} is RUNNING."),
        ("event", f"Flow {ORDERS} is RUNNING."),
        ("batch", ORDERS, 0, 100.0),
        ("batch", ORDERS, 1500, 400.0),
        ("event", f"Flow {ORDERS} has COMPLETED."),
        ("event", "Run is COMPLETED."),
    ]
    told = "".join(json.dumps(step) + "\n" for step in steps)
    environment = {**os.environ, "PYTHONPATH": SOURCES, "TERM": "xterm"}
    ran = subprocess.run(PROGRAM, input=told, env=environment, capture_output=True, text=True, timeout=60, check=True)
    times, words = zip(*(line.split("  ", 1) for line in ran.stdout.splitlines()), strict=True)
    assert list(words) == [
        "orders: queued",
        "orders: running",
        "orders: 1,500 rows so far, 3.00 k rows/s",
        "orders: completed",
        "Run is COMPLETED.",
        "orders: 1,500 rows in 2 batches, 3.00 k rows/s",
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", moment) for moment in times)
    assert ran.stderr == ""
