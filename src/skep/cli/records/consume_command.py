"""``skep consume``: print the records of a topic."""

import contextlib
from collections.abc import Callable
from typing import Annotated, Literal

import typer
from confluent_kafka import Message

from skep.base.clock import SystemClock
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import UsageError
from skep.cli.moments import parse_moment
from skep.cli.partition_selection import partitions_of
from skep.cli.records.group_reader import read_as_member
from skep.cli.records.line_format import escaped
from skep.cli.records.text_format import TextFormat, json_line
from skep.cli.records.topic_reader import Place, Start, read, spans

Isolation = Literal["read_uncommitted", "read_committed"]
AUTO_OFFSET_RESET = {Place.BEGINNING: "earliest", Place.END: "latest"}


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the earliest record.")] = False,
    from_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Start at a time: 2024-05-01T12:00:00Z, milliseconds since 1970, or -1h30m (ago)."
        ),
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option(metavar="N", help="Start at this offset; -10 is ten before the end of each partition.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Only this partition. Repeatable.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=0, metavar="N", help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new records as they arrive; Ctrl-C ends.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Read as a member of this consumer group and commit the offsets."
        ),
    ] = None,
    isolation_level: Annotated[
        Isolation,
        typer.Option(
            "--isolation-level", help="read_uncommitted also prints the records of open and aborted transactions."
        ),
    ] = "read_committed",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with all fields.")] = False,
    print_key: Annotated[bool, typer.Option("--print-key", help="Print the key before the value.")] = False,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", metavar="TEXT", help="The text between key and value.")
    ] = "\\t",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Print the records of a topic, one value per line, up to the current end of the topic.

    The default start is the earliest record. With --follow the command does not end, and the default start is the
    current end; if no broker answers, it says so on stderr and waits. Records are in order within a partition, not
    across partitions. Without --group no consumer group is used, nothing is committed, and the cluster is not changed.

    Records of transactions are printed once they are committed; those of aborted transactions are not printed. So fewer
    records may be printed than skep topics describe counts offsets. --isolation-level read_uncommitted prints them all.

    With --group, reading starts at the committed offsets, partitions are shared with the other members, and the offsets
    of printed records are committed. Partitions without a committed offset start as they do without --group.

    With --json, keys and values that are not UTF-8 are {"base64": "..."} instead of a string.

    \b
    Examples:
      skep consume orders -n 10
      skep consume orders --from-time -1h --json | jq .value
      skep consume orders --follow --print-key --key-separator ' => '
      skep consume orders --group billing --follow
      skep consume orders --isolation-level read_uncommitted
    """
    start = _start(from_beginning, from_time, from_offset, follow)
    if group is not None and (partition or start.place not in AUTO_OFFSET_RESET):
        raise UsageError(
            "--partition, --from-time and --from-offset cannot be used with --group: the group determines partitions "
            "and offsets"
        )
    cluster = cluster_of(bootstrap, properties)
    settings: dict[str, str] = {"isolation.level": isolation_level}
    if group is not None:
        cluster.topic(topic)
        settings["auto.offset.reset"] = AUTO_OFFSET_RESET[start.place]
        records = read_as_member(cluster, [topic], group, follow=follow, max_messages=max_messages, settings=settings)
    else:
        partitions = partitions_of(cluster, topic, partition or ())
        committed = isolation_level == "read_committed"
        wanted = spans(cluster, topic, partitions, start, follow=follow, committed=committed)
        records = read(cluster, {topic: wanted}, max_messages=max_messages, settings=settings)
    text = TextFormat(print_key=print_key, key_separator=escaped(key_separator), null_literal=b"")
    shown: Callable[[Message], bytes] = json_line if json else text.line
    # Closed here and not by the garbage collector, so that a member leaves its group before the process ends.
    with contextlib.closing(records):
        for messages in records:
            if messages:
                output.write(b"".join(map(shown, messages)))
                output.flush()


def _start(from_beginning: bool, from_time: str | None, from_offset: int | None, follow: bool) -> Start:
    if from_beginning + (from_time is not None) + (from_offset is not None) > 1:
        raise UsageError("only one of --from-beginning, --from-time and --from-offset can be used")
    if from_time is not None:
        return Start(Place.TIME, parse_moment(from_time, SystemClock()))
    if from_offset is not None:
        return Start(Place.OFFSET, from_offset)
    return Start(Place.END if follow and not from_beginning else Place.BEGINNING)
