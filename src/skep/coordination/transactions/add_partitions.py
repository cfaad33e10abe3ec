"""Making partitions a part of a transaction, and asking whether one is (AddPartitionsToTxn, KIP-890)."""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.shard import Freshness, Outcome, ProducerStamp
from skep.coordination.transactions.transaction import Transaction
from skep.coordination.transactions.transaction_state import State

if TYPE_CHECKING:
    from skep.coordination.transactions.transaction_shard import TransactionShard


def add(
    shard: "TransactionShard",
    transactional_id: str,
    producer: ProducerStamp,
    partitions: frozenset[TopicPartition],
    answer: Any,
) -> Outcome:
    """AddPartitionsToTxn, AddOffsetsToTxn. The first one begins the transaction."""
    transaction = _not_ending(shard, transactional_id, producer)
    if transaction.state is State.ONGOING and partitions <= transaction.partitions:
        # Proven: a coordinator that was succeeded may mean an earlier transaction of the producer.
        return Outcome(answer, freshness=Freshness.PROVEN)
    return Outcome(answer, [transaction.with_partitions(partitions, shard.clock.now_ms()).record])


def verify(
    shard: "TransactionShard", transactional_id: str, producer: ProducerStamp, partition: TopicPartition
) -> None:
    """INVALID_TXN_STATE when the partition is no part of the producer's transaction; what ``add`` refuses otherwise.

    Asked by a partition before it takes the first records of a transaction. Without it a request that was held up on
    its way, and comes when its transaction is over, would begin one that nobody ends.
    """
    transaction = _not_ending(shard, transactional_id, producer)
    if transaction.state is not State.ONGOING or partition not in transaction.partitions:
        raise KafkaError(
            ErrorCode.invalid_txn_state, f"{partition} was not added to the transaction of {transactional_id!r}"
        )


def _not_ending(shard: "TransactionShard", transactional_id: str, producer: ProducerStamp) -> Transaction:
    transaction = shard.transaction_of(transactional_id, producer)
    if transaction.is_ending:
        raise KafkaError(
            ErrorCode.concurrent_transactions, f"the last transaction of {transactional_id!r} is being ended"
        )
    return transaction
