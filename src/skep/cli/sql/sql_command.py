"""``skep sql``: query topics in SQL with Spark."""

import base64
import contextlib
import csv
import datetime
import decimal
import io
import json as jsonlib
import math
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Cluster, unknown_topic
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.spark.spark_driver import check_java, import_pyspark, spark_driver
from skep.cli.spark.spark_failures import one_line
from skep.cli.sql.sql_views import add_view, given_schemas, topics_named

SHOWN_ROWS = 1000
"""The limit of a table, which is printed when all its rows have arrived."""


def register(app: typer.Typer) -> None:
    app.command("sql")(sql)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY")],
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema", "-s", metavar="TOPIC='NAME TYPE, ...'", help="The fields of a topic's JSON values. Repeatable."
        ),
    ] = None,
    json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")] = False,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            "--bootstrap",
            "-b",
            envvar="SKEP_BOOTSTRAP",
            metavar="HOST:PORT",
            help="Broker addresses, separated by commas.",
        ),
    ] = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a Spark SQL query in which topics are tables.

    The columns are the fields of the JSON values, inferred from the records or given by --schema, and _key, _value,
    _partition, _offset and _timestamp. The query reads each topic up to its current end, without records of open or
    aborted transactions. Names with dots or dashes need backticks. Times are UTC. The output is a table of at most
    1,000 rows; --json (one object per line) and --csv print all rows.

    \b
    Examples:
      skep sql "SELECT product, sum(quantity) FROM orders GROUP BY product"
      skep sql 'SELECT * FROM `orders.large` WHERE _timestamp > now() - INTERVAL 1 HOUR' --json
      skep sql "SELECT id, price * 2 FROM orders" --schema orders='id INT, price DOUBLE' --csv
    """
    if json and as_csv:
        raise UsageError("--json and --csv cannot be used together")
    check_java()
    import_pyspark()
    schemas = given_schemas(schema)
    topics = set(Cluster(bootstrap).metadata().topics)
    named = topics_named(query, topics)
    for topic in schemas:
        if topic not in named.values():
            raise UsageError(f"--schema {topic}=...: the query does not use topic '{topic}'")
    printed = _print_json if json else _print_csv if as_csv else _print_table
    with _session(master) as spark, _query_errors(topics):
        for name, topic in named.items():
            add_view(spark, name, topic, {"kafka.bootstrap.servers": bootstrap}, schemas.get(topic))
        printed(spark.sql(query))


@contextlib.contextmanager
def _session(master: str) -> Iterator[Any]:
    # Rows contain timestamps in the time zone of this process; queries use UTC.
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory(prefix="skep-sql-") as folder:
        settings = {
            "spark.master": master,
            "spark.app.name": "skep sql",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": Path(folder, "warehouse").as_uri(),
            "spark.sql.shuffle.partitions": "4",
        }
        with Path(folder, "spark.log").open("wb") as log, spark_driver(settings, log) as context:
            from pyspark.sql import SparkSession

            yield SparkSession(context)


@contextlib.contextmanager
def _query_errors(topics: Collection[str]) -> Iterator[None]:
    """Turns errors of Spark into CommandErrors of one line; an unknown table is reported as an unknown topic."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND.WITHOUT_SUGGESTION"):
            name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
            if name in topics:
                raise CommandError(f"write the name of topic '{name}' in backticks: `{name}`") from None
            raise CommandError(str(unknown_topic(name, topics))) from None
        raise CommandError(one_line(error)) from None
    except Py4JError as error:
        raise CommandError(one_line(error)) from None


def _print_table(result: Any) -> None:
    rows = result.limit(SHOWN_ROWS + 1).collect()
    if not result.columns:
        return
    numbers = [field.name for field in result.schema if field.dataType.typeName() in _NUMBERS]
    output.table(result.columns, ([_cell(v) for v in row] for row in rows[:SHOWN_ROWS]), right=numbers)
    if len(rows) > SHOWN_ROWS:
        output.note(f"Only the first {SHOWN_ROWS:,} rows are shown; use --json or --csv for all rows.")


_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")


def _print_json(result: Any) -> None:
    names = result.columns
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise CommandError(f"two columns are named {duplicates[0]}, which JSON does not allow; rename one with AS")
    for row in result.toLocalIterator(prefetchPartitions=True):
        output.write(output.json_bytes({name: _plain(v) for name, v in zip(names, row, strict=True)}))


def _print_csv(result: Any) -> None:
    _csv_line(result.columns)
    for row in result.toLocalIterator(prefetchPartitions=True):
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
    from pyspark.sql import Row

    if isinstance(value, Row):
        return {name: _plain(field) for name, field in value.asDict().items()}
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.datetime):
        # Timestamps of records have milliseconds; three more zeros would only widen the table.
        return value.isoformat(" ", "microseconds" if value.microsecond % 1000 else "milliseconds")
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
