"""``skep transactions``: list and describe transactions, find hanging ones, abort them."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from skep.base.clock import SystemClock
from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.moments import parse_duration_ms, shown_moment
from skep.cli.output import Json
from skep.cli.partition_selection import selected_partitions
from skep.cli.skep_client import skep_client
from skep.cli.transactions.hanging_transactions import fence, find_hanging, open_transaction
from skep.cli.transactions.transaction_admin import (
    ONGOING,
    ProducerView,
    TransactionView,
    describe_producers,
    describe_transaction,
    list_transactions,
    write_abort_marker,
)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Topics = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC[:PARTITION,...]", help="For example orders or orders:0,2.")
]
PRODUCER_COLUMNS = ("topic", "partition", "producer", "epoch", "coordinator epoch", "start offset", "last record")


def register(app: typer.Typer) -> None:
    about = "List and describe transactions, find hanging ones, abort them."
    transactions = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    commands: dict[str, Callable[..., None]] = {
        "list": list_all,
        "describe": describe,
        "producers": producers,
        "find-hanging": hanging,
        "abort": abort,
    }
    for name, command in commands.items():
        transactions.command(name)(command)
    app.add_typer(transactions, name="transactions")


def list_all(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only transactions in this state, e.g. Ongoing. Repeatable."),
    ] = None,
    longer_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only transactions open for longer, e.g. 10m.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--id", metavar="REGEX", help="Only transactional ids that match entirely.")
    ] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List transactional ids with the state of their transactions.

    \b
    Examples:
      skep transactions list
      skep transactions list --state Ongoing --longer-than 10m
    """
    longer_than_ms = -1 if longer_than is None else parse_duration_ms(longer_than)
    with skep_client(cluster_of(bootstrap, properties)) as client:
        found = list_transactions(client, states=state or (), longer_than_ms=longer_than_ms, pattern=pattern)
    if json:
        output.document([dataclasses.asdict(row) for row in found])
    elif found:
        columns = ("transactional id", "coordinator", "producer", "state")
        rows = ((row.transactional_id, row.coordinator, row.producer_id, row.state) for row in found)
        output.table(columns, rows, right=("coordinator", "producer"))
    else:
        output.note("No transaction matches." if state or longer_than or pattern else "There are no transactions.")


def describe(
    names: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID")],
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Show the transaction of a transactional id.

    For each: its state and producer, when it started, and the partitions that wait for its end.

    \b
    Examples:
      skep transactions describe billing-1
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        views = [describe_transaction(client, name) for name in names]
    now_ms = SystemClock().now_ms()
    if json:
        output.document([_as_document(view, now_ms) for view in views])
        return
    for number, view in enumerate(views):
        if number:
            output.line()
        _show(view, now_ms)


def _as_document(view: TransactionView, now_ms: int) -> dict[str, Any]:
    return {
        **dataclasses.asdict(view),
        "partitions": [place._asdict() for place in view.partitions],
        "duration_ms": now_ms - view.start_ms if view.is_open and view.start_ms is not None else None,
    }


def _show(view: TransactionView, now_ms: int) -> None:
    output.line(f"{view.transactional_id}  {view.state}  coordinator {view.coordinator}")
    output.line(f"  producer {view.producer_id}, epoch {view.producer_epoch}, timeout {view.timeout_ms / 1000:g} s")
    if view.is_open and view.start_ms is not None:
        open_for = (now_ms - view.start_ms) / 1000
        output.line(f"  began {shown_moment(view.start_ms)}, {open_for:.0f} s ago")
    if view.partitions:
        output.line("  " + " ".join(map(str, view.partitions)))


def producers(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC[:PARTITION,...]", help="For example orders or orders:0,2.")
    ],
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Show the producers of partitions.

    These are idempotent and transactional producers, with the start offset of an open transaction.

    \b
    Examples:
      skep transactions producers orders:0
    """
    cluster = cluster_of(bootstrap, properties)
    places = selected_partitions(cluster, topics)
    with skep_client(cluster) as client:
        _show_producers(describe_producers(client, places), json, "There are no producers.")


def hanging(
    topics: Topics = None,
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="The largest transaction timeout in use.")
    ] = "15m",
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Find open transactions that no coordinator will end.

    They block read_committed consumers until they are aborted. Without a topic, all partitions are searched. Only
    transactions whose last record is older than --older-than are checked: younger ones will still be ended by their
    coordinators.

    \b
    Examples:
      skep transactions find-hanging
      skep transactions find-hanging orders --older-than 1m
    """
    older_than_ms = parse_duration_ms(older_than)
    cluster = cluster_of(bootstrap, properties)
    places = selected_partitions(cluster, topics or cluster.metadata().topics)
    with skep_client(cluster) as client:
        found = find_hanging(client, places, older_than_ms, SystemClock().now_ms())
    _show_producers(found, json, "There are no hanging transactions.")
    if found and not json:
        output.note("To abort one: skep transactions abort --topic TOPIC --partition N --start-offset OFFSET")


def _show_producers(found: Iterable[ProducerView], json: bool, nothing: str) -> None:
    found = list(found)
    if json:
        output.document([{**row.where._asdict(), **dataclasses.asdict(row), "where": str(row.where)} for row in found])
    elif not found:
        output.note(nothing)
    else:
        output.table(
            PRODUCER_COLUMNS,
            (
                (
                    *row.where,
                    row.producer_id,
                    row.producer_epoch,
                    row.coordinator_epoch if row.coordinator_epoch >= 0 else None,
                    row.start_offset,
                    shown_moment(row.last_timestamp),
                )
                for row in found
            ),
            right=PRODUCER_COLUMNS[1:-1],
        )


def abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="TRANSACTIONAL_ID")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic of a hanging transaction.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Its partition.")
    ] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, metavar="N", help="Its start offset.")
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Abort an open or hanging transaction.

    With a transactional id, the transaction is aborted on all its partitions and its producer is fenced: if it is still
    running, its next request fails. A hanging transaction has no coordinator: it is aborted on one partition only, and
    is named by topic, partition and the start offset that find-hanging shows.

    \b
    Examples:
      skep transactions abort billing-1
      skep transactions abort --topic orders --partition 0 --start-offset 42 --yes
    """
    given = sum(part is not None for part in (topic, partition, start_offset))
    if given != (3 if transactional_id is None else 0):
        raise UsageError("give either TRANSACTIONAL_ID or all of --topic, --partition and --start-offset")
    cluster = cluster_of(bootstrap, properties)
    with skep_client(cluster) as client:
        if transactional_id is not None:
            view = describe_transaction(client, transactional_id)
            if view.state != ONGOING:
                raise CommandError(f"'{transactional_id}' has no open transaction; its state is {view.state}")
            if not yes:
                output.confirm(f"Abort the transaction of {transactional_id} and fence its producer?")
            fence(client, transactional_id)
            output.line(f"Aborted the transaction of {transactional_id}.")
            return
        assert topic is not None and partition is not None and start_offset is not None
        [where] = selected_partitions(cluster, [f"{topic}:{partition}"])
        producer = open_transaction(describe_producers(client, [where]), where, start_offset)
        if not yes:
            output.confirm(
                f"Abort the transaction of producer {producer.producer_id} on {where} from offset {start_offset}?"
            )
        write_abort_marker(client, producer)
        output.line(f"Aborted the transaction on {TopicPartition(topic, partition)} from offset {start_offset}.")
