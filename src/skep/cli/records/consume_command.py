"""``skep consume``: the records of a topic, printed."""

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
from skep.cli.records.group_reader import read_as_member
from skep.cli.records.line_format import escaped
from skep.cli.records.text_format import TextFormat, json_line
from skep.cli.records.topic_reader import Place, Start, partitions_of, read, spans

Isolation = Literal["read_uncommitted", "read_committed"]
AUTO_OFFSET_RESET = {Place.BEGINNING: "earliest", Place.END: "latest"}


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the oldest record.")] = False,
    from_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Begin at a time: 2024-05-01T12:00:00Z, milliseconds since 1970, or -1h30m (ago)."
        ),
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option(help="Begin at this offset; -10: with the last ten of each partition.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", "-n", min=0, help="Stop after so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what arrives; Ctrl-C ends.")] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this consumer group, and commit what was printed."),
    ] = None,
    isolation_level: Annotated[
        Isolation, typer.Option("--isolation-level", help="Whether to print what open transactions wrote.")
    ] = "read_uncommitted",
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with all about the record.")] = False,
    print_key: Annotated[bool, typer.Option("--print-key", help="Print the key before the value.")] = False,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", help="What to print between key and value.")
    ] = "\\t",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Print the records of a topic, a value a line, up to the end that the topic has now.

    Begins with the oldest record unless told otherwise. With --follow it does not end, and begins with what arrives
    from now on unless told otherwise. Order holds within a partition, not between partitions. Without --group no
    consumer group is used: looking changes nothing.

    With --group it begins where the group has committed, shares the partitions with the other members, and commits what
    it has printed. Where the group has committed nothing yet, it begins as without.

    With --json, keys and values that are not UTF-8 are {"base64": "..."} instead of a string.

    \b
    Examples:
      skep consume orders -n 10
      skep consume orders --from-time -1h --json | jq .value
      skep consume orders --follow --print-key --key-separator ' => '
      skep consume orders --group billing --follow
    """
    start = _start(from_beginning, from_time, from_offset, follow)
    if group is not None and (partition or start.place not in AUTO_OFFSET_RESET):
        raise UsageError(
            "with --group the group says which partitions and from where: only --from-beginning goes with it"
        )
    cluster = cluster_of(bootstrap, properties)
    settings: dict[str, str] = {"isolation.level": isolation_level}
    if group is not None:
        cluster.topic(topic)
        settings["auto.offset.reset"] = AUTO_OFFSET_RESET[start.place]
        records = read_as_member(cluster, [topic], group, follow=follow, max_messages=max_messages, settings=settings)
    else:
        wanted = spans(cluster, topic, partitions_of(cluster, topic, partition or ()), start, follow=follow)
        records = read(cluster, {topic: wanted}, max_messages=max_messages, settings=settings)
    text = TextFormat(print_key=print_key, key_separator=escaped(key_separator), null_literal=b"")
    shown: Callable[[Message], bytes] = json_line if json else text.line
    # Closed here, and not whenever the collector comes by, so that a member leaves its group before we end.
    with contextlib.closing(records), contextlib.suppress(KeyboardInterrupt):
        for messages in records:
            if messages:
                output.write(b"".join(map(shown, messages)))
                output.flush()


def _start(from_beginning: bool, from_time: str | None, from_offset: int | None, follow: bool) -> Start:
    if from_beginning + (from_time is not None) + (from_offset is not None) > 1:
        raise UsageError("begin at one place: --from-beginning, --from-time or --from-offset")
    if from_time is not None:
        return Start(Place.TIME, parse_moment(from_time, SystemClock()))
    if from_offset is not None:
        return Start(Place.OFFSET, from_offset)
    return Start(Place.END if follow and not from_beginning else Place.BEGINNING)
