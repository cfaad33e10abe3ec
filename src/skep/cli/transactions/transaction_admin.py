"""Admin requests about transactions: as their coordinators know them, and as partitions know them.

The two agree, except for a *hanging* transaction: it is open on a partition and blocks its read_committed consumers,
but no coordinator will ever end it. (The coordinator's record was lost, or a client wrote without adding the partition
to its transaction.) It is ended by writing the abort marker from outside.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError, UsageError
from skep.cli.skep_client import error_text
from skep.client.cluster_client import TRANSACTION, ClusterClient, Node
from skep.wire.apis import DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS, WRITE_TXN_MARKERS

PARTITIONS_PER_REQUEST = 500
NO_TRANSACTION = -1
ONGOING = "Ongoing"
OPEN = (ONGOING, "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True)
class TransactionListing:
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True)
class TransactionView:
    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    """Of the open transaction, or of the last one; None if there was none."""
    partitions: list[TopicPartition]
    """The partitions without a marker of the transaction."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


@dataclass(frozen=True)
class ProducerView:
    """The state of a producer in one partition; ``start_offset`` is that of its open transaction, if it has one."""

    where: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    start_offset: int | None


def list_transactions(
    client: ClusterClient,
    *,
    states: Sequence[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """Returns the transactions of all coordinators, sorted by transactional id. ``pattern`` matches the whole id."""
    try:
        wanted = re.compile(pattern or ".*", re.DOTALL)
    except re.error as error:
        raise UsageError(f"'{pattern}' is not a regular expression: {error}") from None
    body = {"state_filters": states, "producer_id_filters": sorted(producer_ids), "duration_filter": longer_than_ms}
    found = []
    for node in client.nodes():
        response = client.ask_node(node, LIST_TRANSACTIONS, body)
        if response.error_code is not ErrorCode.none:
            raise CommandError(f"broker {node.node_id} cannot list its transactions: {error_text(response.error_code)}")
        if response.unknown_state_filters:
            raise UsageError(f"'{', '.join(response.unknown_state_filters)}' is not a state of transactions")
        found += [
            TransactionListing(row.transactional_id, node.node_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
            if wanted.fullmatch(row.transactional_id)
        ]
    return sorted(found, key=lambda listing: listing.transactional_id)


def describe_transaction(client: ClusterClient, transactional_id: str) -> TransactionView:
    found = find_transaction(client, transactional_id)
    if found is None:
        raise CommandError(f"there is no transactional id '{transactional_id}'")
    return found


def find_transaction(client: ClusterClient, transactional_id: str) -> TransactionView | None:
    node, response = client.ask_coordinator(
        TRANSACTION,
        transactional_id,
        DESCRIBE_TRANSACTIONS,
        {"transactional_ids": [transactional_id]},
        lambda response: response.transaction_states[0].error_code,
    )
    [row] = response.transaction_states
    if row.error_code is ErrorCode.transactional_id_not_found:
        return None
    if row.error_code is not ErrorCode.none:
        raise CommandError(f"cannot describe transactional id '{transactional_id}': {error_text(row.error_code)}")
    start_time = row.transaction_start_time
    return TransactionView(
        transactional_id,
        node.node_id,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        round(row.transaction_timeout.total_seconds() * 1000),
        None if start_time is None else round(start_time.timestamp() * 1000),
        sorted(TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions),
    )


def describe_producers(
    client: ClusterClient, places: Iterable[TopicPartition], broker: int | None = None
) -> list[ProducerView]:
    """Returns the producers of each partition, from its leader or from ``broker``."""
    places = sorted(places)
    leaders = client.leaders(sorted({place.topic for place in places}))
    by_node: dict[Node, list[TopicPartition]] = {}
    chosen = None if broker is None else next((node for node in client.nodes() if node.node_id == broker), None)
    for place in places:
        node = leaders.get(place) if broker is None else chosen
        if node is None:
            raise CommandError(f"{place} has no leader" if broker is None else f"there is no broker {broker}")
        by_node.setdefault(node, []).append(place)
    found = []
    for node, partitions in by_node.items():
        # Several requests, because client and broker hold the whole response in memory.
        for begin in range(0, len(partitions), PARTITIONS_PER_REQUEST):
            body = _by_topic(partitions[begin : begin + PARTITIONS_PER_REQUEST])
            response = client.ask_node(node, DESCRIBE_PRODUCERS, body)
            found += [view for topic in response.topics for row in topic.partitions for view in _producers(topic, row)]
    return found


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return {"topics": [{"name": topic, "partition_indexes": numbers} for topic, numbers in topics.items()]}


def _producers(topic: Any, row: Any) -> list[ProducerView]:
    where = TopicPartition(topic.name, row.partition_index)
    if row.error_code is not ErrorCode.none:
        raise CommandError(f"{where}: {row.error_message or error_text(row.error_code)}")
    return [
        ProducerView(
            where,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            None if producer.current_txn_start_offset <= NO_TRANSACTION else producer.current_txn_start_offset,
        )
        for producer in row.active_producers
    ]


def write_abort_marker(client: ClusterClient, producer: ProducerView) -> None:
    """Aborts the producer's transaction on one partition. Other partitions and the coordinator are not changed."""
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        # -1 if the first transaction of a producer hangs: no coordinator has written a marker yet. Epochs start at 0.
        "coordinator_epoch": max(0, producer.coordinator_epoch),
        "transaction_result": False,
        **_by_topic([producer.where]),
    }
    leader = client.leaders([producer.where.topic]).get(producer.where)
    if leader is None:
        raise CommandError(f"{producer.where} has no leader")
    [result] = client.ask_node(leader, WRITE_TXN_MARKERS, {"markers": [marker]}).markers
    for code in (row.error_code for topic in result.topics for row in topic.partitions):
        if code is not ErrorCode.none:
            raise KafkaError(code, f"cannot abort the transaction on {producer.where}: {error_text(code)}")
