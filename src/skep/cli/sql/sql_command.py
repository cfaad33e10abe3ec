"""``skep sql``: query topics in SQL, with Spark or DuckDB."""

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from skep.cli.connection import DEFAULT_BOOTSTRAP, Properties, pairs
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.spark.spark_driver import check_java, import_pyspark
from skep.cli.sql.pipeline_tables import PipelineTables
from skep.cli.sql.prompt import Engine, Prompt, completions
from skep.cli.sql.query_result import QueryResult, print_csv, print_json, print_table
from skep.cli.sql.query_text import Dialect, given_schemas, missing_table, syntax_error, tables_named
from skep.cli.sql.table_catalog import TableCatalog
from skep.cli.sql.topic_tables import TopicTables
from skep.cli.sql.value_schema import shown_name


class EngineName(StrEnum):
    spark = "spark"
    duckdb = "duckdb"


def register(app: typer.Typer) -> None:
    app.command("sql")(sql)


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A statement; without one they are read from a prompt.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", "-e", help="What runs the query; duckdb starts at once.")
    ] = EngineName.spark,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema", "-s", metavar="TOPIC='NAME TYPE, ...'", help="The fields of a topic's JSON values. Repeatable."
        ),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="DIR", help="Read also the records that skep archive has written to DIR."),
    ] = None,
    pipeline: Annotated[
        Path | None,
        typer.Option("--pipeline", metavar="DIR", help="Query also the tables of the pipeline project in DIR."),
    ] = None,
    json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")] = False,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")] = "local[*]",
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "--bootstrap",
            "-b",
            envvar="SKEP_BOOTSTRAP",
            metavar="HOST:PORT",
            help=f"Broker addresses, separated by commas; those of the pipeline, or {DEFAULT_BOOTSTRAP}.",
        ),
    ] = None,
    properties: Properties = None,
) -> None:
    """Run a SQL query in which topics are tables. Without a query, open a prompt.

    The columns are the fields of the JSON values, inferred from the records or given by --schema, and _key, _value,
    _partition, _offset and _timestamp. The query reads each topic up to its current end, without records of open or
    aborted transactions. Names with dots or dashes need backticks. Times are UTC. The output is a table of at most
    1,000 rows; --json (one object per line) and --csv print all rows.

    Spark takes 10 to 30 s to start. --engine duckdb takes about a second, reads topics into memory, and speaks the SQL
    of DuckDB. Tables, columns and types are the same.

    The prompt keeps its session. Statements end with a semicolon, \\d lists topics, \\d NAME lists columns, Tab
    completes names, Ctrl-C cancels a query and Ctrl-D ends. Statements are also read from a pipe.

    \b
    Examples:
      skep sql "SELECT product, sum(quantity) FROM orders GROUP BY product"
      skep sql 'SELECT * FROM `orders.large` WHERE _timestamp > now() - INTERVAL 1 HOUR' --json
      skep sql "SELECT id, price * 2 FROM orders" --schema orders='id INT, price DOUBLE' --csv
      skep sql "SELECT count(*) FROM orders" --engine duckdb --archive lake
      skep sql "SELECT * FROM revenue" --pipeline shop
      skep sql --engine duckdb
    """
    if json and as_csv:
        raise UsageError("--json and --csv cannot be used together")
    if engine is EngineName.spark:
        check_java()
        import_pyspark()
    schemas = given_schemas(schema)
    tables = None if pipeline is None else PipelineTables.load(pipeline)
    address = bootstrap or (tables.bootstrap if tables is not None else None) or DEFAULT_BOOTSTRAP
    client = pairs(properties, "--property")
    catalog = TableCatalog(TopicTables(address, schemas, _archive(archive), client), tables)
    catalog.check_schemas(schemas)
    chosen = _engine(engine, catalog, master)
    printed = print_json if json else print_csv if as_csv else print_table
    if query is None:
        for topic in sorted(schemas.keys() - catalog.names()):
            raise catalog.unknown(topic)
        _prompt(chosen, catalog, printed)
        return
    _check(query, engine, catalog, schemas, chosen.dialect)
    with chosen:
        printed(chosen.run(query))


def _engine(name: EngineName, catalog: TableCatalog, master: str) -> Engine:
    # Imported here: each takes a while, and only one is used.
    if name is EngineName.duckdb:
        from skep.cli.sql.duckdb_engine import DuckdbEngine

        return DuckdbEngine(catalog)
    from skep.cli.sql.spark_engine import SparkEngine

    return SparkEngine(catalog, master)


def _check(query: str, engine: EngineName, catalog: TableCatalog, schemas: Iterable[str], dialect: Dialect) -> None:
    """Checks what can be checked before the engine starts. Raises CommandError."""
    if engine is EngineName.spark and (error := syntax_error(query)) is not None:
        raise CommandError(f"syntax error: {error}")
    named = tables_named(query, catalog.names(), dialect).values()
    for topic in schemas:
        if topic not in named:
            raise UsageError(f"--schema {topic}=...: the query does not use topic '{topic}'")
    if engine is EngineName.spark and (name := missing_table(query, catalog.names())) is not None:
        raise catalog.unknown(name)


def _prompt(engine: Engine, catalog: TableCatalog, printed: Callable[[QueryResult], None]) -> None:
    prompt = Prompt(engine, catalog, printed)
    with engine:
        if not sys.stdin.isatty():
            prompt.read_pipe()
            return
        from skep.cli.sql.line_editor import LineEditor, history_path

        known: dict[str, list[str]] = {}

        def columns(table: str) -> list[str]:
            if table not in known:
                try:
                    known[table] = [shown_name(name) for name, _ in catalog.described(table)]
                except CommandError:
                    return []
            return known[table]

        def complete(text: str, before: str) -> list[str]:
            return list(dict.fromkeys(completions(text, prompt.pending() + before, catalog, columns)))

        prompt.talk(LineEditor(complete, history_path()))


def _archive(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    # Path has collapsed the two slashes of s3:// into one.
    if ":/" in str(folder):
        raise UsageError(f"--archive {folder}: expected a local folder, not a URL; mount remote storage as a folder")
    from skep.client.archive.archive_folder import find_archives

    if not find_archives(folder):
        raise UsageError(f"--archive {folder}: there is no archive in this folder (skep archive TOPIC --to {folder})")
    return folder
