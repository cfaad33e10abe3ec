"""``skep replay``: write archived records back to a topic."""

import hashlib
import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.archive.archive_command import archive_client
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
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder given to skep archive as --to.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic to write to.")],
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="The archived topic, if DIR has several archives.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only records with a timestamp at or after TIME.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only records with a timestamp before TIME.")
    ] = None,
    from_offset: Annotated[
        int, typer.Option("--from-offset", min=0, metavar="N", help="Only archived offsets from this one on.")
    ] = 0,
    until_offset: Annotated[
        int | None, typer.Option("--until-offset", min=0, metavar="N", help="Only archived offsets before this one.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only this archived partition. Repeatable."),
    ] = None,
    repartition: Annotated[
        bool, typer.Option("--repartition", help="Choose partitions by key, not by the archived partition.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The name of this replay; a new name replays everything again."),
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Continue without the records of deleted archive files.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Write archived records back to a topic, with the same key, value, headers, timestamp, partition and order.

    A read_committed consumer sees each record exactly once: the same command, run again after it was killed, continues
    where it stopped, and adds what was archived since. To write the same records again, give the replay another
    --name. The progress is stored as the committed offsets of a group with that name. A name cannot be reused for
    another archive or with other options, so give --from and --until as dates (2026-01-31T00:00:00Z), not as -1h.

    The topic must exist, with at least as many partitions as the archive (or use --repartition), and its retention.ms
    should be longer than the age of the records.

    \b
    Examples:
      skep topics create orders.again -p 2 --config retention.ms=-1
      skep replay lake --to orders.again
      skep replay lake/topic=orders --to orders.january --from 2026-01-01T00:00Z --until 2026-02-01T00:00Z
      skep replay lake --topic orders --to orders --partition 3 --from-offset 1000 --name lost-records
    """
    clock = SystemClock()
    with archive_client(bootstrap, properties, to) as client:
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
        chosen = name or _default_name(client, archive, to, asked)
        _warn_about_retention(client, archive, to)
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
    _report(result, archive, to, chosen, json=json)


def _report(result: "ReplayResult", archive: "Archive", to: str, name: str, *, json: bool) -> None:
    if json:
        counts = [{"partition": one, "records": count} for one, count in sorted(result.replayed.items())]
        document = {"topic": archive.topic, "to": to, "name": name, "records": result.records}
        output.document(document | {"transactions": result.transactions, "partitions": counts})
    else:
        _show(result, archive.topic, to)
    for number, part in sorted(archive.partitions.items()):
        for first, end in part.gaps:
            output.note(
                f"Partition {number}: offsets {first} to {end - 1} are missing in the archive; they were deleted from "
                f"the topic before they were archived."
            )
        for lost in archive.lost(number, 0, part.end):
            output.note(f"{lost}.")


def _show(result: "ReplayResult", topic: str, to: str) -> None:
    if result.resumed and not result.records:
        output.line(f"Nothing to replay: all records are in {to} already (to write them again, use --name).")
        return
    resumed = ", continuing an earlier run" if result.resumed else ""
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
        raise UsageError(f"{directory} has archives of several topics ({names}); choose one with --topic")
    return Archive.open(found[0])


def _default_name(client: "ClusterClient", archive: "Archive", to: str, asked: tuple[object, ...]) -> str:
    """Returns a name that is the same for the same options, unless the topic is deleted and created again."""
    from skep.client.topic_info import describe_topics

    target = describe_topics(client, [to])[to]
    text = jsonlib.dumps([str(archive.topic_id), str(target.topic_id), *asked])
    return f"skep-replay-{archive.topic}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _warn_about_retention(client: "ClusterClient", archive: "Archive", to: str) -> None:
    """Replayed records keep their timestamps, so retention by time may delete them soon after they are written."""
    from skep.client.admin import topic_configs
    from skep.client.archive.archive_folder import date_of_day, day_of_ms

    configs = topic_configs(client, to)
    retention_ms = int(configs.get("retention.ms") or -1)
    policy = configs.get("cleanup.policy")
    if retention_ms < 0 or (policy is not None and "delete" not in policy):
        return
    oldest = date_of_day(day_of_ms(SystemClock().now_ms() - retention_ms))
    days = [path.name.removeprefix("date=") for path in archive.folder.glob("date=*")]
    if days and min(days) < oldest:
        output.note(
            f"warning: topic {to} has retention.ms={retention_ms} and will soon delete records from before {oldest}. "
            f"To keep them: skep topics alter {to} --config retention.ms=-1"
        )
