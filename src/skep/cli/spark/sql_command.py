"""``skep sql``: a question to topics, answered by Spark."""

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
from skep.cli.spark.sql_views import add_view, given_schemas, topics_named

SHOWN_ROWS = 1000
"""A table is drawn when all of its rows are there; more than these nobody reads."""


def register(app: typer.Typer) -> None:
    app.command("sql")(sql)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY")],
    schema: Annotated[
        list[str] | None,
        typer.Option("--schema", "-s", metavar="TOPIC='NAME TYPE, ...'", help="The fields of a topic. Repeatable."),
    ] = None,
    json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a line of names.")] = False,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.")] = "local[*]",
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            "--bootstrap",
            "-b",
            envvar="SKEP_BOOTSTRAP",
            metavar="HOST:PORT",
            help="A broker of the cluster, or several, separated by commas.",
        ),
    ] = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a query of Spark SQL in which topics are tables.

    The fields of the JSON in a topic's values are its columns: those that are found in it, or those that --schema
    says. Besides them there are _key, _value, _partition, _offset and _timestamp. The topic is read as far as it
    reaches when the query starts, without what open or aborted transactions wrote. Names with dots or dashes are
    written in backticks. Times are UTC. A table shows at most 1,000 rows; --json (an object a line) and --csv print
    all.

    \b
    Examples:
      skep sql "SELECT product, sum(quantity) FROM orders GROUP BY product"
      skep sql 'SELECT * FROM `orders.large` WHERE _timestamp > now() - INTERVAL 1 HOUR' --json
      skep sql "SELECT id, price * 2 FROM orders" --schema orders='id INT, price DOUBLE' --csv
    """
    if json and as_csv:
        raise UsageError("either --json or --csv")
    check_java()
    import_pyspark()
    schemas = given_schemas(schema)
    topics = set(Cluster(bootstrap).metadata().topics)
    named = topics_named(query, topics)
    for topic in schemas:
        if topic not in named.values():
            raise UsageError(f"--schema is about topic '{topic}', which the query does not name")
    printed = _print_json if json else _print_csv if as_csv else _print_table
    with _session(master) as spark, _complaints(topics):
        for name, topic in named.items():
            add_view(spark, name, topic, {"kafka.bootstrap.servers": bootstrap}, schemas.get(topic))
        printed(spark.sql(query))


@contextlib.contextmanager
def _session(master: str) -> Iterator[Any]:
    # Rows bring moments as times of this process's zone, and queries mean UTC.
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
def _complaints(topics: Collection[str]) -> Iterator[None]:
    """What Spark says in one line; a table that is not there is a topic that is not there."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND.WITHOUT_SUGGESTION"):
            name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
            if name in topics:
                raise CommandError(f"topic '{name}' has a name that is written in backticks: `{name}`") from None
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
        output.note(f"Only the first {SHOWN_ROWS:,} rows are shown; --json and --csv print all.")


_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")


def _print_json(result: Any) -> None:
    names = result.columns
    if twice := [name for name in names if names.count(name) > 1]:
        raise CommandError(f"two columns have the name {twice[0]}, and a JSON object has one; name them with AS")
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
    """A value in a table or in CSV: itself when it is simple, else as JSON."""
    plain = _plain(value)
    return jsonlib.dumps(plain, ensure_ascii=False) if isinstance(plain, list | dict | bool) else plain


def _plain(value: Any) -> Any:
    """A value of a row as JSON can carry it."""
    from pyspark.sql import Row

    if isinstance(value, Row):
        return {name: _plain(field) for name, field in value.asDict().items()}
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.datetime):
        # Records have milliseconds; three more zeros would only make every row wider.
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
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")  # as Spark's to_json; JSON has none
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
