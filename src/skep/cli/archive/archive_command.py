"""``skep archive``: write a topic to Parquet files in a folder. Each further run adds the new records."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.moments import parse_moment
from skep.cli.output import Json
from skep.cli.skep_client import skep_client
from skep.client.arrow_libraries import pyarrow
from skep.client.cluster_client import ClusterClient
from skep.client.errors import MissingExtra

if TYPE_CHECKING:
    from skep.client.archive.archiver import ArchiveResult


def register(app: typer.Typer) -> None:
    app.command("archive")(archive)


def archive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to archive.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder of archives; created if missing.")],
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Stop at the first record at or after TIME: 2026-01-31T00:00:00Z, or -1h (an hour ago).",
        ),
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Continue if records were deleted before they were archived.")
    ] = False,
    file_mb: Annotated[
        int, typer.Option("--file-mb", min=1, metavar="N", help="Uncompressed megabytes of records per write.")
    ] = 128,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Write the records of a topic to Parquet files, in folders by day. Each further run adds the new records.

    The files are DIR/topic=TOPIC/date=YYYY-MM-DD/*.parquet with the columns key, value, partition, offset, timestamp,
    timestampType and headers; the date is that of the record's timestamp in UTC. Only committed records are archived,
    each exactly once, even if the command is killed at any point and run again.

    The first run begins with the oldest record of the topic. After that, it is an error if retention deletes records
    before they are archived, so run the command more often than that. With --allow-gaps the archive records the
    missing offsets and continues.

    skep replay writes the records back to a topic. The option archive of the Spark source reads the archive and the
    topic as one table.

    \b
    Examples:
      skep archive orders --to lake
      skep archive orders --to lake --until 2026-01-31T00:00:00Z
      skep archive orders --to lake --json | jq .records
    """
    # Path has collapsed the two slashes of s3:// into one.
    if ":/" in str(to):
        raise UsageError(f"--to {to}: expected a local folder, not a URL; mount remote storage as a folder")
    until_ms = None if until is None else parse_moment(until, SystemClock())
    with archive_client(bootstrap, properties, topic) as client:
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
    records, files = output.count(result.records, "record"), output.count(result.files, "file")
    output.line(f"Archived {records} of topic {topic} to {result.folder} ({files}).")
    for part in result.partitions:
        for first, end in part.gaps:
            output.note(
                f"Partition {part.partition}: offsets {first} to {end - 1} are missing; they were deleted from the "
                f"topic before they were archived."
            )


@contextmanager
def archive_client(bootstrap: str, properties: Iterable[str] | None, topic: str) -> Iterator[ClusterClient]:
    """Opens the client of ``skep archive`` and ``skep replay``.

    Raises CommandError if pyarrow is missing, no broker answers or the topic does not exist. Errors of the client and
    of the disk inside the ``with`` become CommandErrors.
    """
    try:
        pyarrow()
        cluster = cluster_of(bootstrap, properties)
        cluster.topic(topic)
        with skep_client(cluster) as client:
            yield client
    except MissingExtra as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from None


def _as_document(result: "ArchiveResult") -> dict[str, object]:
    return {
        "topic": result.topic,
        "folder": str(result.folder),
        "records": result.records,
        "files": result.files,
        "bytes": result.bytes,
        "partitions": [part._asdict() for part in result.partitions],
    }
