"""``skep replay``: archived records back into a topic."""

import hashlib
import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.archive_clients import archive_client
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties
from skep.cli.failures import CommandError, UsageError
from skep.cli.moments import parse_moment
from skep.cli.output import Json

if TYPE_CHECKING:
    from skep.client.archive.archive_folder import Archive
    from skep.client.archive.replay import ReplayResult
    from skep.client.cluster_client import ClusterClient


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What skep archive was given as --to.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic to write to.")],
    topic: Annotated[
        str | None, typer.Option("--topic", help="The archived topic, when DIR has the archives of several.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only records with this timestamp or a later one.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only records with an earlier timestamp.")
    ] = None,
    from_offset: Annotated[int, typer.Option("--from-offset", min=0, help="Only from this archived offset on.")] = 0,
    until_offset: Annotated[
        int | None, typer.Option("--until-offset", min=0, help="Only offsets before this one.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this archived partition. Repeatable.")
    ] = None,
    repartition: Annotated[
        bool, typer.Option("--repartition", help="Let keys choose the partition, not where the record was.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="What this replay is called; another name replays once more.")
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Go on when files of the archive were deleted, without their records.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Write archived records back to a topic: key, value, headers, timestamp, partition and order as they were.

    Each record is written once for who reads committed records: the same command, run again after it was killed, goes
    on where it was, and writes what was archived since. To write the same records a second time, give the replay
    another --name. It is the name of a group too, which has the progress. A name is refused for another archive or
    other options, so give --from and --until as moments (2026-01-31T00:00:00Z), not as how long ago.

    The topic must exist, with at least as many partitions (or let keys choose: --repartition), and should keep records
    as old as these (retention.ms).

    \b
    Examples:
      skep topics create orders.again -p 2 --config retention.ms=-1
      skep replay lake --to orders.again
      skep replay lake/topic=orders --to orders.january --from 2026-01-01T00:00Z --until 2026-02-01T00:00Z
      skep replay lake --topic orders --to orders --partition 3 --from-offset 1000 --name lost-records
    """
    clock = SystemClock()
    with archive_client(bootstrap, properties) as client:
        from skep.client.archive.replay import LATEST_OFFSET, Selection
        from skep.client.archive.replay import replay as run_replay

        archive = _find(directory, topic)
        selection = Selection(
            partition or None,
            from_offset,
            LATEST_OFFSET if until_offset is None else until_offset,
            None if from_ is None else parse_moment(from_, clock),
            None if until is None else parse_moment(until, clock),
        )
        asked = (from_, until, from_offset, until_offset, sorted(partition or ()), repartition)
        chosen = name or _usual_name(client, archive, to, asked)
        _warn_of_retention(client, archive, to)
        with output.progress(shown=not json) as bar:
            task = bar.add_task(to)
            result = run_replay(
                client,
                archive,
                to,
                name=chosen,
                selection=selection,
                repartition=repartition,
                allow_gaps=allow_gaps,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    _tell(result, archive, to, chosen, json=json)


def _tell(result: "ReplayResult", archive: "Archive", to: str, name: str, *, json: bool) -> None:
    if json:
        counts = [{"partition": one, "records": count} for one, count in sorted(result.replayed.items())]
        document = {"topic": archive.topic, "to": to, "name": name, "records": result.records}
        output.document(document | {"transactions": result.transactions, "partitions": counts})
    else:
        _show(result, archive.topic, to)
    for number, part in sorted(archive.partitions.items()):
        for first, end in part.gaps:
            output.note(f"The archive lacks offsets {first} to {end - 1} of partition {number}: the log had lost them.")
        for lost in archive.lost(number, 0, part.end):
            output.note(f"{lost}.")


def _show(result: "ReplayResult", topic: str, to: str) -> None:
    if result.resumed and not result.records:
        output.line(f"Nothing is left to replay: it has been written to {to} before (--name writes it once more).")
        return
    resumed = ", going on where an earlier run had ended" if result.resumed else ""
    output.line(f"Replayed {output.count(result.records, 'record')} of topic {topic} to {to}{resumed}.")


def _find(directory: Path, topic: str | None) -> "Archive":
    from skep.client.archive.archive_folder import Archive, find_archives, topic_folder

    if topic is not None and directory.name != f"topic={topic}":
        return Archive.open(topic_folder(directory, topic))
    found = find_archives(directory)
    if not found:
        raise CommandError(f"there is no archive in {directory}")
    if len(found) > 1:
        names = ", ".join(folder.name.removeprefix("topic=") for folder in found)
        raise UsageError(f"{directory} has the archives of {names}: say which one with --topic")
    return Archive.open(found[0])


def _usual_name(client: "ClusterClient", archive: "Archive", to: str, asked: tuple[object, ...]) -> str:
    """The same for the same command, as long as the topic is the same one."""
    from skep.client.topic_info import describe_topics

    target = describe_topics(client, [to])[to]
    text = jsonlib.dumps([str(archive.topic_id), str(target.topic_id), *asked])
    return f"skep-replay-{archive.topic}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _warn_of_retention(client: "ClusterClient", archive: "Archive", to: str) -> None:
    """Old records keep their timestamps: retention by time may take them soon after they are written."""
    from skep.client.admin import topic_configs
    from skep.client.archive.archive_folder import date_of_day, day_of_ms

    configs = topic_configs(client, to)
    retention_ms = int(configs.get("retention.ms") or -1)
    if retention_ms < 0 or "delete" not in (configs.get("cleanup.policy") or "delete"):
        return
    oldest = date_of_day(day_of_ms(SystemClock().now_ms() - retention_ms))
    days = [path.name.removeprefix("date=") for path in archive.folder.glob("date=*")]
    if days and min(days) < oldest:
        output.note(
            f"Records from before {oldest} are older than retention.ms={retention_ms} of topic {to} allows: it deletes "
            f"them soon. To keep them: skep topics alter {to} --config retention.ms=-1"
        )
