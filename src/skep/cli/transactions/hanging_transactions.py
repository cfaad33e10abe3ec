"""Finding transactions that hang, and ending transactions from outside."""

import datetime
from collections.abc import Collection, Iterable

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError
from skep.cli.skep_client import in_words
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
"""Nothing is written under the epoch that fencing gives us, so there is nothing to leave time for."""


def find_hanging(
    client: ClusterClient, places: Iterable[TopicPartition], older_than_ms: int, now_ms: int, broker: int | None = None
) -> list[ProducerView]:
    """The open transactions of these partitions that no coordinator will end.

    Only those are looked at whose last record is older than ``older_than_ms``: a younger one may be on its way to its
    coordinator. With the largest timeout that transactions may have, all others have been ended by their coordinators.
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
    """Whether the coordinator, which sees ``transaction`` under this producer's id, does not count on its partition.

    While a transaction is being ended the coordinator shows the partitions that have no marker yet; what is not among
    them gets none.
    """
    return transaction is None or producer.where not in transaction.partitions


def open_transaction(producers: Collection[ProducerView], where: TopicPartition, start_offset: int) -> ProducerView:
    for producer in producers:
        if producer.start_offset == start_offset:
            return producer
    opened = sorted(producer.start_offset for producer in producers if producer.start_offset is not None)
    there = f"those open there begin at {', '.join(map(str, opened))}" if opened else "none is open there"
    raise CommandError(f"no transaction on {where} begins at offset {start_offset}: {there}")


def fence(client: ClusterClient, transactional_id: str) -> None:
    """Takes the next epoch of a transactional id: what it has under way is aborted, and its producer is shut out.

    Returns when the transaction is aborted. That is how a new producer with the same id begins, and like it this needs
    no right beyond writing under the id.
    """
    _, answer = client.ask_coordinator(
        TRANSACTION,
        transactional_id,
        INIT_PRODUCER_ID,
        {
            "transactional_id": transactional_id,
            "transaction_timeout": FENCING_TIMEOUT,
            "producer_id": NO_ID,
            "producer_epoch": NO_ID,
        },
        lambda answer: answer.error_code,
    )
    if answer.error_code is not ErrorCode.none:
        raise CommandError(f"'{transactional_id}' is not aborted: {in_words(answer.error_code)}")
