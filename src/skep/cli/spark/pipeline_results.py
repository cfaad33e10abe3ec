"""``skep pipeline show``: rows of a pipeline's table from its Parquet files, and the newest records of its topics."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep.base.errors import KafkaError
from skep.base.unknown_names import did_you_mean
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP
from skep.cli.failures import CommandError
from skep.cli.spark.last_run import load_last_run, table_folder
from skep.cli.spark.pipeline_graph import VIEW
from skep.cli.spark.pipeline_project import Project
from skep.cli.spark.table_files import files_of_table, read_rows, rows_of_table
from skep.client.errors import ClientError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CELL = 60


def show_rows(project: Project, name: str, limit: int, *, json: bool) -> None:
    """Prints rows of a table or records of a topic. Raises CommandError if the pipeline has no such thing."""
    last = load_last_run(project)
    datasets = list(last.graph.datasets.values()) if last is not None else []
    # A table comes before a topic of the same name.
    named = next((one for one in datasets if name == one.name and one.kind != "topic"), None)
    topic = named.topic if named is not None else None
    if (
        topic is None
        and named is None
        and name in {one.topic or one.name for one in datasets if one.key[:6] == "topic "}
    ):
        topic = name
    if topic is not None:
        _show_topic(project, topic, limit, json=json)
        return
    if named is not None and named.kind == VIEW:
        raise CommandError(f"{name} is a temporary view, which keeps no rows; show the tables that read it")
    folder = table_folder(project, name)
    if folder is None:
        raise CommandError(f"the storage {project.storage} is not a local folder; read the table with Spark")
    if not folder.is_dir():
        known = sorted(
            {one.name for one in datasets if one.kind != VIEW} | {one.topic for one in datasets if one.topic}
        )
        never = "" if last is not None else "; the pipeline has not been run yet"
        listed = f"; it has {', '.join(known)}" if known else ""
        raise CommandError(f"the pipeline has no table or topic '{name}'{did_you_mean(name, known) or listed}{never}")
    _show_table(name, folder, limit, json=json)


def _show_table(name: str, folder: Path, limit: int, *, json: bool) -> None:
    import pyarrow as pa

    try:
        files = files_of_table(folder)
        # The newest files first: a table that grows has its news there.
        rows = read_rows(reversed(files), limit)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CommandError(f"cannot read the files of {name} in {folder}: {' '.join(str(error).split())}") from None
    total = rows_of_table(folder)
    _print(rows, json=json)
    if not json:
        shown = rows.num_rows if rows is not None else 0
        more = f"; --limit shows more than {shown:,}" if total is not None and total > shown else ""
        output.note(f"Table {name} has {output.count(total or 0, 'row')}{more}.")


def _show_topic(project: Project, topic: str, limit: int, *, json: bool) -> None:
    import pyarrow as pa

    from skep.cli.spark.topic_ends import ends_of
    from skep.client.arrow.arrow_reader import read_batches

    bootstrap = project.bootstrap or DEFAULT_BOOTSTRAP
    ends = ends_of(bootstrap, [topic], project.client)
    if ends is None:
        raise CommandError(
            f"cannot read topic '{topic}': no broker answers at {bootstrap}, or the topic does not exist"
        )
    # Transactions have markers, which take offsets too: with twice the number there are enough records.
    start: dict[int, Any] = {one.partition: max(0, end - 2 * limit - 2) for one, end in ends.items()}
    try:
        records = read_batches(bootstrap, topic, start=start, headers=True, config=project.client).read_all()
    except (KafkaError, ClientError) as error:
        raise CommandError(f"cannot read topic '{topic}': {error}") from None
    newest = records.sort_by([("timestamp", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    newest = newest.slice(max(0, newest.num_rows - limit))
    columns = ["partition", "offset", "timestamp", "key", "value", "headers"]
    _print(pa.table({column: newest[column] for column in columns}), json=json)
    if not json:
        output.note(f"Topic {topic}: the newest {output.count(newest.num_rows, 'record')}.")


def _print(rows: "pa.Table | None", *, json: bool) -> None:
    if rows is None:
        return
    if json:
        for row in rows.to_pylist():
            output.write(output.json_bytes({name: plain(value) for name, value in row.items()}))
        return
    import pyarrow as pa

    kinds = {field.name: field.type for field in rows.schema}
    right = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
    output.table(rows.column_names, ([_cell(value) for value in row.values()] for row in rows.to_pylist()), right=right)


def plain(value: Any) -> Any:
    """Returns a value of Arrow as a JSON value."""
    if isinstance(value, bytes):
        return output.readable(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "microseconds" if value.microsecond % 1000 else "milliseconds")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _cell(value: Any) -> object:
    simple = plain(value)
    if isinstance(simple, list) and all(isinstance(one, dict) and one.keys() == {"key", "value"} for one in simple):
        # Headers, as a reader writes them.
        simple = ", ".join(f"{one['key']}={one['value']}" for one in simple) or None
    text = simple if simple is None or isinstance(simple, str) else str(simple)
    return text if text is None or len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."
