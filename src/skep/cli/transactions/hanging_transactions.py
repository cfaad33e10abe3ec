"""Finding hanging transactions, and aborting transactions from outside."""

import datetime
from collections.abc import Collection, Iterable

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError
from skep.cli.skep_client import error_text
from skep.cli.transactions.transaction_admin import (
    ProducerView,
    TransactionView,
    describe_producers,
    find_transaction,
    list_transactions,
)
from skep.client.cluster_client import TRANSACTION, ClusterClient
from skep.wire.apis import INIT_PRODUCER_ID

NO_ID = -1
FENCING_TIMEOUT = datetime.timedelta(milliseconds=1)
"""The transaction timeout of the epoch that fencing takes. It can be short, because nothing is written with it."""


def find_hanging(
    client: ClusterClient, places: Iterable[TopicPartition], older_than_ms: int, now_ms: int, broker: int | None = None
) -> list[ProducerView]:
    """Returns the open transactions of these partitions that no coordinator will end.

    Only transactions whose last record is older than ``older_than_ms`` are checked: a younger one may not have reached
    its coordinator yet. If ``older_than_ms`` is the largest transaction timeout in use, the coordinators have aborted
    all others.
    """
    open_for_long = [
        producer
        for producer in describe_producers(client, places, broker)
        if producer.start_offset is not None and now_ms - producer.last_timestamp > older_than_ms
    ]
    if not open_for_long:
        return []
    producer_ids = {producer.producer_id for producer in open_for_long}
    names = {row.producer_id: row.transactional_id for row in list_transactions(client, producer_ids=producer_ids)}
    known = {producer_id: find_transaction(client, name) for producer_id, name in names.items()}
    return [producer for producer in open_for_long if hangs(producer, known.get(producer.producer_id))]


def hangs(producer: ProducerView, transaction: TransactionView | None) -> bool:
    """Returns whether the coordinator's ``transaction`` of this producer id does not include the partition.

    While a transaction is being completed, the coordinator lists the partitions that have no marker yet. A partition
    that is not in the list gets no marker.
    """
    return transaction is None or producer.where not in transaction.partitions


def open_transaction(producers: Collection[ProducerView], where: TopicPartition, start_offset: int) -> ProducerView:
    for producer in producers:
        if producer.start_offset == start_offset:
            return producer
    opened = sorted(producer.start_offset for producer in producers if producer.start_offset is not None)
    known = f"the open ones start at {', '.join(map(str, opened))}" if opened else "it has no open transaction"
    raise CommandError(f"no open transaction of {where} starts at offset {start_offset}; {known}")


def fence(client: ClusterClient, transactional_id: str) -> None:
    """Takes the next epoch of a transactional id: its open transaction is aborted and its producer is fenced.

    Returns when the transaction is aborted. A new producer with the same transactional id starts in the same way, so
    this needs no permission beyond writing with the id.
    """
    _, response = client.ask_coordinator(
        TRANSACTION,
        transactional_id,
        INIT_PRODUCER_ID,
        {
            "transactional_id": transactional_id,
            "transaction_timeout": FENCING_TIMEOUT,
            "producer_id": NO_ID,
            "producer_epoch": NO_ID,
        },
        lambda response: response.error_code,
    )
    if response.error_code is not ErrorCode.none:
        raise CommandError(f"cannot abort the transaction of '{transactional_id}': {error_text(response.error_code)}")
