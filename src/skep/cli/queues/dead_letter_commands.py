"""``skep queues dead`` and ``skep queues redrive``: look at what a share group has given up, and let it try again."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.cluster.config_admin import Resource, ResourceType, describe_configs
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Cluster, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.moments import parse_moment, shown_moment
from skep.cli.output import Json
from skep.cli.queues.dead_letter_reader import DeadLetterReader, LetterFilter, StoredLetter, parsed_offsets
from skep.cli.queues.queue_views import check_queue_exists
from skep.cli.queues.redrive import MAX_BATCH, Redrive, Sources
from skep.cli.skep_client import skep_client
from skep.client.cluster_client import ClusterClient

_OPTION = "errors.deadletterqueue.topic.name"

Group = Annotated[str, typer.Argument(metavar="GROUP")]
Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only records of this topic.")]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Only records of this partition.")
]
Offsets = Annotated[
    list[str] | None,
    typer.Option("--offset", metavar="OFFSET", help="Only these offsets of the topic: 17 or 10-20. Repeatable."),
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Only those whose reason has this text.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only those that died since then: -1h, 2024-05-01T12:00:00Z."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TOPIC", help="The dead-letter topic, if it is not the group's present one."),
]


def register(queues: typer.Typer) -> None:
    queues.command("dead")(dead)
    queues.command("redrive")(redrive)


def dead(
    group: Group,
    topic: Topic = None,
    partition: Partition = None,
    offset: Offsets = None,
    reason: Reason = None,
    since: Since = None,
    dlq: From = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List the records that a share group has given up.

    For each dead letter: when it was written, which record it is about, how often that was delivered, why it died,
    whether the letter has a copy of it, and whether it was redriven. --json prints a line for each.

    \b
    Examples:
      skep queues dead workers
      skep queues dead workers --since -1h --reason timeout
      skep queues dead workers --json | jq -r .reason | sort | uniq -c
    """
    cluster = cluster_of(bootstrap, properties)
    with skep_client(cluster) as client:
        name = dlq or _topic_of(cluster, client, group)
        wanted = _filter(group, topic, partition, offset, reason, since)
        reader = DeadLetterReader(cluster, name, wanted, _sources(cluster, client).applies)
    if json:
        for found in reader.letters():
            output.write(output.json_bytes(_document(found, is_redriven=reader.is_redriven(found))))
        return
    columns = ("when", "topic", "partition", "offset", "deliveries", "copy", "redriven", "reason")
    rows = [_row(found, is_redriven=reader.is_redriven(found)) for found in reader.letters()]
    if rows:
        output.table(columns, rows, right=("partition", "offset", "deliveries"))
    else:
        output.note(f"There are no such dead letters in {name}.")


def redrive(
    group: Group,
    topic: Topic = None,
    partition: Partition = None,
    offset: Offsets = None,
    reason: Reason = None,
    since: Since = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, metavar="N", help="At most this many records per second.")
    ] = None,
    dlq: From = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Give dead records to their share group again.

    A record that is still in its topic is opened again in place: the group gets it as if it had never been delivered,
    and other consumers are not affected. If it is no longer there and the dead letter has a copy, the copy is produced
    to the topic again; then other groups and consumers of the topic get it, too. Each dead letter is redriven once. If
    this command dies, run it again: it finishes what it had begun, and redrives nothing twice.

    \b
    Examples:
      skep queues redrive workers --dry-run
      skep queues redrive workers --reason timeout --since -1h
      skep queues redrive workers --topic jobs --offset 17 --offset 20-29
      skep queues redrive workers --rate 10
    """
    cluster = cluster_of(bootstrap, properties)
    wanted = _filter(group, topic, partition, offset, reason, since)
    with skep_client(cluster) as client:
        name = dlq or _topic_of(cluster, client, group)
        sources = _sources(cluster, client)
        if dry_run:
            _show_plan(DeadLetterReader(cluster, name, wanted, sources.applies), sources, json)
            return
        cluster.topic(name)
        work = Redrive(cluster, client, sources, group, name, rate)
        work.run(lambda: DeadLetterReader(cluster, name, wanted, sources.applies))
    done = work.tally
    if json:
        output.document(asdict(done))
        return
    output.line(f"Redriven: {done.in_place} in place, {done.from_copy} from copies.")
    if done.resumed:
        output.line(f"Finished an earlier redrive of {output.count(done.resumed, 'record')}.")
    if done.unfinished:
        output.line(f"{output.count(done.unfinished, 'record')} needed none: the group has not finished them.")
    if done.lost:
        output.line(f"{output.count(done.lost, 'dead letter')} cannot be redriven: no record and no copy is left.")


def _show_plan(reader: DeadLetterReader, sources: Sources, json: bool) -> None:
    plan: Counter[str] = Counter(in_place=0, from_copy=0, lost=0)
    batches: dict[tuple[str, int], list[StoredLetter]] = {}

    def count(place: tuple[str, int]) -> None:
        fate = sources.fate(*place, batches.pop(place))
        plan.update({kind: len(chosen) for kind, chosen in fate._asdict().items()})

    for found in reader.letters():
        if not reader.is_redriven(found):
            place = found.letter.topic, found.letter.partition
            batches.setdefault(place, []).append(found)
            if len(batches[place]) >= MAX_BATCH:
                count(place)
    for place in list(batches):
        count(place)
    if json:
        output.document(dict(plan))
    else:
        output.line(
            f"Would redrive {plan['in_place']} in place, {plan['from_copy']} from copies; "
            f"{plan['lost']} cannot be redriven."
        )


def _filter(
    group: str,
    topic: str | None,
    partition: int | None,
    offset: list[str] | None,
    reason: str | None,
    since: str | None,
) -> LetterFilter:
    if offset and topic is None:
        raise UsageError("--offset needs --topic")
    since_ms = None if since is None else parse_moment(since, SystemClock())
    return LetterFilter(group, topic, partition, parsed_offsets(offset), reason, since_ms)


def _topic_of(cluster: Cluster, client: ClusterClient, group: str) -> str:
    configs = describe_configs(client, Resource(ResourceType.GROUP, group))
    name = next((config.value for config in configs if config.name == _OPTION), None)
    if not name:
        check_queue_exists(cluster, group)
        raise CommandError(
            f"group {group} has no dead-letter topic: set {_OPTION} for it, or name the topic of earlier letters "
            "with --from"
        )
    return name


def _sources(cluster: Cluster, client: ClusterClient) -> Sources:
    return Sources(cluster, lambda topic: _topic_id(client, topic))


def _topic_id(client: ClusterClient, topic: str) -> str | None:
    (found,) = client.metadata([topic]).topics
    return None if getattr(found, "topic_id", None) is None else str(found.topic_id)


def _row(found: StoredLetter, *, is_redriven: bool) -> tuple[object, ...]:
    letter = found.letter
    return (
        shown_moment(found.written_ms),
        letter.topic,
        letter.partition,
        letter.offset,
        None if letter.delivery_count < 0 else letter.delivery_count,
        "yes" if letter.has_copy else "no",
        "yes" if is_redriven else "no",
        letter.reason or None,
    )


def _document(found: StoredLetter, *, is_redriven: bool) -> dict[str, Any]:
    letter = found.letter
    return {
        "written_ms": found.written_ms,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "delivery_count": letter.delivery_count,
        "reason": letter.reason,
        "copy": letter.copy,
        "is_redriven": is_redriven,
        "letter": {"partition": found.partition, "offset": found.offset},
    }
