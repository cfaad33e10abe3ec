"""``skep archive``: a topic as Parquet files in a folder, kept up to date by running it again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.archive_clients import archive_client
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties
from skep.cli.failures import UsageError
from skep.cli.moments import parse_moment
from skep.cli.output import Json

if TYPE_CHECKING:
    from skep.client.archive.archiver import ArchiveResult


def register(app: typer.Typer) -> None:
    app.command("archive")(archive)


def archive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to archive.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder of archives; made when it is missing.")],
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Stop before the first record that is not older: 2026-01-31T00:00:00Z, or -1h for an hour ago.",
        ),
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Go on when the log has lost records that were not archived.")
    ] = False,
    file_mb: Annotated[
        int, typer.Option("--file-mb", min=1, help="Megabytes of records, not compressed, that are written at once.")
    ] = 128,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Write the records of a topic to Parquet files, in folders by day; run again, add what is new.

    The files are DIR/topic=TOPIC/date=YYYY-MM-DD/*.parquet with the columns key, value, partition, offset, timestamp,
    timestampType and headers; the day is that of the record's timestamp in UTC. Committed records are archived, each
    once, also when the command is killed at any point and run again.

    The first run begins with the oldest record that the topic still has. From then on it is an error if retention
    deletes records before they were archived, so run it more often than that. With --allow-gaps the archive notes what
    it lacks, and goes on.

    skep replay writes the records back to a topic, and the option archive of the Spark source reads archive and topic
    as one table.

    \b
    Examples:
      skep archive orders --to lake
      skep archive orders --to lake --until 2026-01-31T00:00:00Z
      skep archive orders --to lake --json | jq .records
    """
    # A path has lost one of the slashes of s3://.
    if ":/" in str(to):
        raise UsageError("--to is a folder of this machine; mount what is elsewhere")
    until_ms = None if until is None else parse_moment(until, SystemClock())
    with archive_client(bootstrap, properties) as client:
        from skep.client.archive.archiver import archive_topic

        with output.progress(shown=not json) as bar:
            task = bar.add_task(topic)
            result = archive_topic(
                client,
                topic,
                to,
                until_ms=until_ms,
                allow_gaps=allow_gaps,
                piece_bytes=file_mb << 20,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    if json:
        output.document(_as_document(result))
        return
    words = f"Archived {output.count(result.records, 'record')} of topic {topic} to {result.folder}"
    output.line(f"{words} ({output.count(result.files, 'file')}).")
    for part in result.partitions:
        for first, end in part.gaps:
            output.note(f"Partition {part.partition} lacks offsets {first} to {end - 1}, which the log had lost.")


def _as_document(result: "ArchiveResult") -> dict[str, object]:
    return {
        "topic": result.topic,
        "folder": str(result.folder),
        "records": result.records,
        "files": result.files,
        "bytes": result.bytes,
        "partitions": [part._asdict() for part in result.partitions],
    }
