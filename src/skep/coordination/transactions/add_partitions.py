"""Adds partitions to a transaction, and verifies that one belongs to it (AddPartitionsToTxn, KIP-890)."""

from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.shard import Freshness, Outcome, ProducerStamp
from skep.coordination.transactions.transaction import Transaction
from skep.coordination.transactions.transaction_state import State
from skep.coordination.transactions.transaction_table import TransactionTable


def add(
    table: TransactionTable,
    transactional_id: str,
    producer: ProducerStamp,
    partitions: frozenset[TopicPartition],
    response: Any,
    version: int = 0,
) -> Outcome:
    """AddPartitionsToTxn, AddOffsetsToTxn, and with ``V2`` Produce and TxnOffsetCommit. The first call begins the
    transaction."""
    transaction = _not_ending(table, transactional_id, producer)
    if transaction.state is State.ONGOING and partitions <= transaction.partitions:
        # PROVEN: a coordinator that was succeeded may be looking at an earlier transaction of the producer.
        return Outcome(response, freshness=Freshness.PROVEN)
    return Outcome(response, [transaction.with_partitions(partitions, version, table.clock.now_ms()).record])


def verify(table: TransactionTable, transactional_id: str, producer: ProducerStamp, partition: TopicPartition) -> None:
    """Raises INVALID_TXN_STATE when the partition does not belong to the producer's transaction, and what ``add``
    raises otherwise.

    A partition asks this before it accepts the first records of a transaction. Without it a request that was delayed on
    its way, and arrives after its transaction has ended, would begin a transaction that nothing ends.
    """
    transaction = _not_ending(table, transactional_id, producer)
    if transaction.state is not State.ONGOING or partition not in transaction.partitions:
        raise KafkaError(
            ErrorCode.invalid_txn_state, f"{partition} was not added to the transaction of {transactional_id!r}"
        )


def _not_ending(table: TransactionTable, transactional_id: str, producer: ProducerStamp) -> Transaction:
    transaction = table.transaction_of(transactional_id, producer)
    if transaction.is_ending:
        raise KafkaError(
            ErrorCode.concurrent_transactions,
            f"the last transaction of {transactional_id!r} is {transaction.state.label}",
        )
    return transaction
