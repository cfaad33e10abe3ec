"""``skep queues``: list and describe share groups as queues. The other commands stand in modules of their own."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.moments import shown_moment
from skep.cli.output import Json
from skep.cli.queues import dead_letter_commands, option_commands, scheduled_commands
from skep.cli.queues.queue_views import Queue, all_queues, as_document, find_queue
from skep.cli.queues.retry_command import retry
from skep.cli.skep_client import skep_client

Group = Annotated[str, typer.Argument(metavar="GROUP")]

SHOWN_RUNS = 100
"""How many lines a person may want to read."""

NUMBERS = ("start", "end", "lag", "available", "in flight", "waiting", "dying")


def register(app: typer.Typer) -> None:
    about = "Queues: share groups, their dead letters, and what is to be delivered later."
    queues = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    commands: dict[str, Callable[..., None]] = {
        "list": list_all,
        "describe": describe,
        "retry": retry,
    }
    for name, command in commands.items():
        queues.command(name)(command)
    option_commands.register(queues)
    dead_letter_commands.register(queues)
    scheduled_commands.register(queues)
    app.add_typer(queues, name="queues")


def list_all(
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List the share groups.

    For each: its topics, how many records no member has finished (lag), how many of them members hold now (in flight),
    how many wait for their next delivery, and the topic of its dead letters. "-" where the brokers cannot tell.

    \b
    Examples:
      skep queues list
      skep queues list --json | jq -r '.[] | select(.lag > 1000).group'
    """
    cluster = cluster_of(bootstrap, properties)
    with skep_client(cluster) as client:
        queues = all_queues(cluster, client)
    if json:
        output.document([as_document(queue, with_runs=False) for queue in queues])
    elif queues:
        columns = ("group", "state", "members", "topics", "lag", "in flight", "waiting", "dead letters")
        output.table(columns, map(_row, queues), right=("members", "lag", "in flight", "waiting"))
    else:
        output.note("There are no share groups.")


def _row(queue: Queue) -> tuple[object, ...]:
    return (
        queue.view.group,
        queue.view.state,
        len(queue.view.members),
        ",".join(queue.topics) or None,
        queue.lag,
        queue.total("in_flight"),
        queue.total("waiting"),
        queue.dead_letter_topic,
    )


def describe(
    group: Group,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Show what a share group has in flight, and who holds it.

    For each partition: the first record that is not finished (start), the first one that was never delivered (end), how
    many are not finished (lag), and how many of those can be delivered now (available), are held by a member (in
    flight), wait for their next delivery (waiting), or are being written to the dead-letter topic (dying). Then who
    holds what, since when and until when, and what is to be delivered again. "-" where the brokers cannot tell: only
    Skep's know what is in flight.

    \b
    Examples:
      skep queues describe workers
      skep queues describe workers --json | jq '.partitions[].runs[] | select(.delivery_count > 3)'
    """
    cluster = cluster_of(bootstrap, properties)
    with skep_client(cluster) as client:
        queue = find_queue(cluster, client, group)
    if json:
        output.document(as_document(queue, with_runs=True))
        return
    members = output.count(len(queue.view.members), "member") if queue.view.members else "no members"
    output.line("  ".join((group, queue.view.state, members, f"lag {queue.lag:,}")))
    for option in queue.options:
        output.line(f"  {option.name}={option.value}")
    if not queue.partitions:
        output.line("  no partitions")
        return
    output.table(("topic", "partition", *NUMBERS), map(_partition_row, queue.partitions), right=("partition", *NUMBERS))
    for partition in queue.partitions:
        if (problem := partition.problem) is not None:
            output.alarm(f"{partition.where.topic}-{partition.where.partition}: {problem}")
    if runs := list(islice(_unfinished(queue), SHOWN_RUNS + 1)):
        output.line()
        columns = ("topic", "partition", "offsets", "state", "deliveries", "member", "client", "host", "since", "until")
        output.table(columns, runs[:SHOWN_RUNS], right=("partition", "offsets", "deliveries"))
        if len(runs) > SHOWN_RUNS:
            output.note(f"There are more than {SHOWN_RUNS} of these; --json shows all.")


def _partition_row(partition: Any) -> tuple[object, ...]:
    return (
        *partition.where,
        partition.offset.start,
        partition.in_flight("end"),
        partition.offset.lag,
        *(partition.in_flight(what) for what in ("available", "in_flight", "waiting", "dying")),
    )


def _unfinished(queue: Queue) -> Iterator[tuple[object, ...]]:
    """Yields the runs that members hold, and those that are to be delivered again."""
    members = {member.member_id: member for member in queue.view.members}
    for partition in queue.partitions:
        for run in partition.deliveries.runs if partition.deliveries is not None else ():
            member = members.get(run.get("member", ""))
            offsets = str(run["first"]) if run["first"] == run["last"] else f"{run['first']}-{run['last']}"
            yield (
                *partition.where,
                offsets,
                run["state"],
                run["delivery_count"],
                run.get("member"),
                member and member.client_id,
                member and member.host,
                _moment(run.get("locked_at_ms")),
                _moment(run.get("lock_expires_ms", run.get("not_before_ms"))),
            )


def _moment(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else shown_moment(timestamp_ms)
