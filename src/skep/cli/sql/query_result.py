"""The result of a query, whichever engine ran it, and how it is printed: as a table, as JSON or as CSV."""

import base64
import csv
import datetime
import decimal
import io
import json as jsonlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from skep.cli import output
from skep.cli.failures import CommandError

SHOWN_ROWS = 1000
"""The limit of a table, which is printed when all its rows have arrived."""


class QueryResult(Protocol):
    """The rows of a query, which can be read once."""

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def numbers(self) -> Sequence[str]:
        """The columns with numbers, which a table aligns at the right."""

    def first(self, limit: int) -> Sequence[Sequence[Any]]:
        """Returns at most so many rows."""

    def rows(self) -> Iterable[Sequence[Any]]:
        """Yields all rows as they arrive."""


def print_table(result: QueryResult) -> None:
    rows = result.first(SHOWN_ROWS + 1)
    if not result.columns:
        return
    output.table(result.columns, ([_cell(v) for v in row] for row in rows[:SHOWN_ROWS]), right=result.numbers)
    if len(rows) > SHOWN_ROWS:
        output.note(f"Only the first {SHOWN_ROWS:,} rows are shown; use --json or --csv for all rows.")


def print_json(result: QueryResult) -> None:
    names = result.columns
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise CommandError(f"two columns are named {duplicates[0]}, which JSON does not allow; rename one with AS")
    for row in result.rows():
        output.write(output.json_bytes({name: _plain(v) for name, v in zip(names, row, strict=True)}))


def print_csv(result: QueryResult) -> None:
    _csv_line(result.columns)
    for row in result.rows():
        _csv_line(["" if value is None else _cell(value) for value in row])


def _csv_line(cells: Sequence[object]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    output.write(line.getvalue().encode(errors="surrogateescape"))


def _cell(value: Any) -> object:
    """Returns a value for a table or CSV: itself if it is simple, else JSON."""
    plain = _plain(value)
    return jsonlib.dumps(plain, ensure_ascii=False) if isinstance(plain, list | dict | bool) else plain


def _plain(value: Any) -> Any:
    """Returns a value of a row as a JSON value."""
    if hasattr(value, "asDict"):
        # A struct of Spark.
        value = value.asDict()
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.datetime):
        # Both engines compute in UTC; DuckDB's values name it. Timestamps of records have milliseconds; three more
        # zeros would only widen the table.
        moment = value.replace(tzinfo=None)
        return moment.isoformat(" ", "microseconds" if value.microsecond % 1000 else "milliseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")  # as in Spark's to_json
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
