"""``kafka-transactions`` with Kafka's flags: list and describe transactions, find hanging ones, abort them."""

import argparse
import sys
from collections.abc import Sequence

from skep.base.clock import Clock, SystemClock
from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.connection import Cluster
from skep.cli.failures import UsageError, run
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from
from skep.cli.partition_selection import selected_partitions
from skep.cli.skep_client import skep_client
from skep.cli.transactions.hanging_transactions import fence, find_hanging, open_transaction
from skep.cli.transactions.transaction_admin import (
    ProducerView,
    describe_producers,
    describe_transaction,
    list_transactions,
    write_abort_marker,
)
from skep.client.cluster_client import ClusterClient

EXAMPLES = """\
  kafka-transactions --bootstrap-server localhost:9092 list
  kafka-transactions --bootstrap-server localhost:9092 describe --transactional-id billing-1
  kafka-transactions --bootstrap-server localhost:9092 find-hanging --topic orders
  kafka-transactions --bootstrap-server localhost:9092 abort --topic orders --partition 0 --start-offset 42
"""
PRODUCER_COLUMNS = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
HANGING_COLUMNS = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)
MINUTE_MS = 60_000


def main() -> None:
    sys.exit(run("kafka-transactions", lambda: execute(None)))


def _parser() -> KafkaFlags:
    parser = KafkaFlags(
        "kafka-transactions", "List and describe transactions, find hanging ones, abort them.", EXAMPLES
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Command)
    listing = commands.add_parser("list", help="list transactions")
    listing.add_argument(
        "--duration-filter", type=int, default=-1, metavar="MS", help="only transactions open for longer"
    )
    listing.add_argument("--transactional-id-pattern", metavar="REGEX", help="only transactional ids that match")
    describing = commands.add_parser("describe", help="describe the state of a transactional id")
    describing.add_argument("--transactional-id", required=True)
    of_partition = commands.add_parser("describe-producers", help="describe the active producers of a partition")
    hanging = commands.add_parser("find-hanging", help="find hanging transactions")
    hanging.add_argument("--max-transaction-timeout", type=int, default=15, metavar="MINUTES")
    aborting = commands.add_parser("abort", help="abort a hanging transaction")
    aborting.add_argument("--start-offset", type=int, help="the start offset of the transaction")
    for name in ("--producer-id", "--producer-epoch", "--coordinator-epoch"):
        aborting.add_argument(name, type=int, help="instead of --start-offset; all three are needed")
    for command in (of_partition, hanging, aborting):
        command.add_argument("--topic", required=command is not hanging)
        command.add_argument("--partition", type=int, required=command is not hanging)
    for command in (of_partition, hanging):
        command.add_argument("--broker-id", type=int, help="query this broker instead of the leader")
    ending = commands.add_parser("forceTerminateTransaction", help="abort the transaction of a transactional id")
    ending.add_argument("--transactionalId", dest="transactional_id", required=True)
    return parser


class _Command(argparse.ArgumentParser):
    error = KafkaFlags.error


def execute(arguments: list[str] | None, clock: Clock | None = None) -> None:
    flags = _parser().parse(arguments)
    flags.now_ms = (clock or SystemClock()).now_ms()
    _check(flags)
    cluster = cluster_from(flags)
    with skep_client(cluster) as client:
        {
            "list": _list,
            "describe": _describe,
            "describe-producers": _describe_producers,
            "find-hanging": _find_hanging,
            "abort": _abort,
            "forceTerminateTransaction": _terminate,
        }[flags.command](cluster, client, flags)


def _check(flags: argparse.Namespace) -> None:
    """Raises UsageError for flags that contradict each other."""
    if flags.command == "find-hanging":
        if flags.topic is None and flags.broker_id is None:
            raise UsageError("find-hanging requires either --topic or --broker-id to limit the scope of the search")
        if flags.partition is not None and flags.topic is None:
            raise UsageError("The --partition argument requires --topic to be provided")
    if flags.command == "abort" and flags.start_offset is None and None in _producer_in(flags):
        raise UsageError(
            "The transaction to abort must be identified either with --start-offset or with --producer-id, "
            "--producer-epoch, and --coordinator-epoch"
        )


def _producer_in(flags: argparse.Namespace) -> tuple[int, int, int]:
    """Returns the producer of a transaction to abort; None in it stands for a flag that is missing."""
    return flags.producer_id, flags.producer_epoch, flags.coordinator_epoch


def _list(cluster: Cluster, client: ClusterClient, flags: argparse.Namespace) -> None:
    found = list_transactions(client, longer_than_ms=flags.duration_filter, pattern=flags.transactional_id_pattern)
    _print_table(
        ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"),
        [(row.transactional_id, row.coordinator, row.producer_id, row.state) for row in found],
    )


def _describe(cluster: Cluster, client: ClusterClient, flags: argparse.Namespace) -> None:
    view = describe_transaction(client, flags.transactional_id)
    row = {
        "CoordinatorId": view.coordinator,
        "TransactionalId": view.transactional_id,
        "ProducerId": view.producer_id,
        "ProducerEpoch": view.producer_epoch,
        "TransactionState": view.state,
        "TransactionTimeoutMs": view.timeout_ms,
        "CurrentTransactionStartTimeMs": view.start_ms,
        "TransactionDurationMs": None if view.start_ms is None else flags.now_ms - view.start_ms,
        "TopicPartitions": ",".join(map(str, view.partitions)),
    }
    _print_table(list(row), [list(row.values())])


def _describe_producers(cluster: Cluster, client: ClusterClient, flags: argparse.Namespace) -> None:
    places = selected_partitions(cluster, [f"{flags.topic}:{flags.partition}"])
    rows = [
        [p.producer_id, p.producer_epoch, p.coordinator_epoch, p.last_sequence, p.last_timestamp, p.start_offset]
        for p in describe_producers(client, places, flags.broker_id)
    ]
    _print_table(PRODUCER_COLUMNS, rows)


def _find_hanging(cluster: Cluster, client: ClusterClient, flags: argparse.Namespace) -> None:
    topics = cluster.metadata().topics
    if flags.topic is not None:
        places = selected_partitions(
            cluster, [flags.topic if flags.partition is None else f"{flags.topic}:{flags.partition}"]
        )
    else:
        places = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
    if flags.broker_id is not None:
        places = [at for at in places if flags.broker_id in topics[at.topic].partitions[at.partition].replicas]
    older_than_ms = flags.max_transaction_timeout * MINUTE_MS
    rows = [
        [
            *p.where,
            p.producer_id,
            p.producer_epoch,
            p.coordinator_epoch,
            p.start_offset,
            p.last_timestamp,
            (flags.now_ms - p.last_timestamp) // MINUTE_MS,
        ]
        for p in find_hanging(client, places, older_than_ms, flags.now_ms, flags.broker_id)
    ]
    _print_table(HANGING_COLUMNS, rows)


def _abort(cluster: Cluster, client: ClusterClient, flags: argparse.Namespace) -> None:
    [where] = selected_partitions(cluster, [f"{flags.topic}:{flags.partition}"])
    if flags.start_offset is None:
        producer = ProducerView(where, *_producer_in(flags), last_sequence=-1, last_timestamp=-1, start_offset=None)
    else:
        producer = open_transaction(describe_producers(client, [where]), where, flags.start_offset)
    write_abort_marker(client, producer)


def _terminate(cluster: Cluster, client: ClusterClient, flags: argparse.Namespace) -> None:
    fence(client, flags.transactional_id)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table as Kafka's tool does: each column is padded to its longest cell and followed by a tab."""
    texts = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    for row in texts:
        output.line("".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)))
