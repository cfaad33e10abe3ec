"""What commands print: tables for people, JSON for scripts, progress on stderr; colours only on a terminal.

Everything meant for stdout goes through ``write``, so that a closed pipe is noticed in one place.
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
    """Show what has been written; called when no more is coming for the moment."""
    try:
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def line(text: str = "") -> None:
    write(text.encode(errors="surrogateescape") + b"\n")


def document(value: Any) -> None:
    """One JSON document for a whole answer."""
    line(json.dumps(value, indent=2, ensure_ascii=False))


def json_bytes(value: Any) -> bytes:
    """One JSON object on a line of its own, for answers that may be long."""
    return _encode(value).encode(errors="surrogateescape") + b"\n"


def alarm(text: str) -> None:
    """A line that must not be overlooked: red, on a terminal."""
    line(typer.style(text, fg="red") if sys.stdout.isatty() else text)


def note(text: str) -> None:
    """Something about the work, not its result: it goes to stderr, so that a pipe carries results only."""
    flush()
    print(text, file=sys.stderr, flush=True)


def confirm(question: str) -> None:
    """Asks on stderr; CommandError unless the answer is yes. No answer, as of a script without a terminal, is no."""
    flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("not confirmed, nothing is done")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A table that fits the terminal; in a pipe nothing is cut and nothing is coloured."""
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
    """A progress bar on stderr; it draws nothing unless ``shown`` and stderr is a terminal."""
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
    """An amount per second with three figures that mean something: ``950 B/s``, ``12.4 kB/s``, ``1.10 MB/s``."""
    value = amount / max(seconds, 1e-9)
    for limit, prefix in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {prefix}{unit}/s"
    return f"{value:.0f} {unit.strip()}/s"


def readable(field: bytes | None) -> Any:
    """``field`` as JSON can carry it, so that the bytes can be had back exactly."""
    if field is None:
        return None
    try:
        return field.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(field).decode()}
