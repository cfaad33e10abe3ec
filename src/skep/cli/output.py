"""The output of commands: tables for people, JSON for scripts, progress on stderr, colours only on a terminal.

Everything on stdout is written by ``write``, so that a closed pipe is detected in one place.
"""

import base64
import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.failures import CommandError, OutputClosed

if TYPE_CHECKING:
    from rich.progress import Progress

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

UNLIMITED_WIDTH = 10_000
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise OutputClosed from None


def flush() -> None:
    """Flushes stdout. Commands call it before they wait for more records."""
    try:
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def line(text: str = "") -> None:
    write(text.encode(errors="surrogateescape") + b"\n")


def document(value: Any) -> None:
    """Prints the whole result as one JSON document."""
    line(json.dumps(value, indent=2, ensure_ascii=False))


def json_bytes(value: Any) -> bytes:
    """Returns one line with a JSON object, for results with many rows."""
    return _encode(value).encode(errors="surrogateescape") + b"\n"


def alarm(text: str) -> None:
    """Prints a line in red if stdout is a terminal."""
    line(typer.style(text, fg="red") if sys.stdout.isatty() else text)


def note(text: str) -> None:
    """Prints a message to stderr, after the results so far, so that a pipe carries results only."""
    flush()
    error_line(text)


def error_line(text: str) -> None:
    """Prints a line to stderr. Unlike ``note`` it does not flush stdout, which may be a closed pipe."""
    print(text, file=sys.stderr, flush=True)


def confirm(question: str) -> None:
    """Asks a question on stderr. Raises CommandError unless the reply is yes; the end of stdin counts as no."""
    flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("not confirmed; nothing was changed (use --yes to skip the question)")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Prints a table that fits the terminal. In a pipe, cells are neither wrapped nor coloured."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        drawn.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    terminal = sys.stdout.isatty()
    rendered = io.StringIO()
    width = None if terminal else UNLIMITED_WIDTH
    Console(file=rendered, force_terminal=terminal, width=width, highlight=False).print(drawn)
    for row_text in rendered.getvalue().splitlines():
        line(row_text.rstrip())


def progress(*, shown: bool, unit_is_bytes: bool = False) -> "Progress":
    """Returns a progress bar on stderr. It draws nothing unless ``shown`` and stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = DownloadColumn() if unit_is_bytes else MofNCompleteColumn()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        done,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not (shown and sys.stderr.isatty()),
        transient=True,
    )


def count(number: int, singular: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{number:,} {singular}" + ("" if number == 1 else "s")


def rate(amount: float, seconds: float, unit: str) -> str:
    """Returns an amount per second with three significant figures: ``950 B/s``, ``12.4 kB/s``, ``1.10 MB/s``."""
    value = amount / max(seconds, 1e-9)
    for limit, prefix in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {prefix}{unit}/s"
    return f"{value:.0f} {unit.strip()}/s"


def readable(field: bytes | None) -> Any:
    """Returns ``field`` as a JSON value from which the exact bytes can be restored."""
    if field is None:
        return None
    try:
        return field.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(field).decode()}
