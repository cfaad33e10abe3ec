"""InitProducerId with a transactional id: the caller becomes its producer, and the previous producer is fenced.

A producer that names its current id and epoch (KIP-360) asks for its own next epoch after an error that it recovered
from. It is refused when another producer has taken the transactional id meanwhile. The response to it may be lost, so
the previous epoch is remembered: a request that names it again gets the same response. The previous epoch is not known
after a restart, as in Kafka; the producer is then fenced.
"""

from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import Outcome, ProducerStamp
from skep.coordination.transactions.decision import abort_and_fence
from skep.coordination.transactions.transaction import NO_EPOCH, Transaction, is_exhausted, new_transaction
from skep.coordination.transactions.transaction_state import State
from skep.coordination.transactions.transaction_table import NEEDS_PRODUCER_ID, TransactionTable


class InitProducerRequest(NamedTuple):
    """The request. ``current`` is the producer id and epoch that the client has, or None if it has none."""

    transactional_id: str
    timeout_ms: int
    current: ProducerStamp | None


ABORTING: dict[str, Any] = {
    "error_code": ErrorCode.concurrent_transactions,
    "producer_id": -1,
    "producer_epoch": NO_EPOCH,
}


def initialize(table: TransactionTable, asked: InitProducerRequest, new_producer_id: int | None) -> Outcome:
    """Returns the body of the response, or NEEDS_PRODUCER_ID when a producer id is needed and none is given."""
    transaction = table.transactions.get(asked.transactional_id)
    if transaction is None:
        return _first(table, asked, new_producer_id)
    if asked.current is not None and asked.current != transaction.successor:
        _check_is_of_this_id(transaction, asked.current)
    if transaction.is_ending:
        raise KafkaError(
            ErrorCode.concurrent_transactions,
            f"the last transaction of {asked.transactional_id!r} is {transaction.state.label}",
        )
    if transaction.state is State.ONGOING:
        if asked.current is not None and asked.current != transaction.producer:
            # Kafka aborts here as well, and so lets a fenced producer abort the transaction of its successor.
            raise _fenced(transaction, asked.current)
        # The client retries. When the transaction has ended, the retry gets the epoch after the one that fences.
        return abort_and_fence(table, transaction, ABORTING)
    if is_exhausted(transaction.producer_epoch) and asked.current in (None, transaction.producer):
        if new_producer_id is None:
            return Outcome(NEEDS_PRODUCER_ID)
        return _become(table, transaction, asked, ProducerStamp(new_producer_id, 0))
    if asked.current is None or asked.current == transaction.producer:
        return _become(
            table, transaction, asked, ProducerStamp(transaction.producer_id, transaction.producer_epoch + 1)
        )
    if asked.current.producer_epoch != table.earlier_epochs.get(asked.transactional_id):
        raise _fenced(transaction, asked.current)
    # A repeated request: it gets the same response, and nothing changes.
    return Outcome(_response(transaction.producer))


def _first(table: TransactionTable, asked: InitProducerRequest, new_producer_id: int | None) -> Outcome:
    limit = table.config.max_transactional_ids
    if len(table.transactions) >= limit:
        raise KafkaError(
            ErrorCode.policy_violation, f"this shard has {limit} transactional ids already (skep.max.transactional.ids)"
        )
    if new_producer_id is None:
        return Outcome(NEEDS_PRODUCER_ID)
    transaction = new_transaction(asked.transactional_id, new_producer_id, asked.timeout_ms, table.clock.now_ms())
    return Outcome(_response(transaction.producer), [transaction.record])


def _check_is_of_this_id(transaction: Transaction, current: ProducerStamp) -> None:
    """Accepts the current producer id, or the previous one if it was replaced because its epochs were exhausted."""
    if current.producer_id == transaction.producer_id:
        return
    if current.producer_id != transaction.previous_producer_id or not is_exhausted(current.producer_epoch):
        raise _fenced(transaction, current)


def _become(
    table: TransactionTable, transaction: Transaction, asked: InitProducerRequest, producer: ProducerStamp
) -> Outcome:
    changed = transaction.with_producer(producer, asked.timeout_ms, table.clock.now_ms())

    def then() -> None:
        if asked.current is None:
            table.earlier_epochs.pop(asked.transactional_id, None)
        else:
            table.earlier_epochs[asked.transactional_id] = asked.current.producer_epoch

    return Outcome(_response(producer), [changed.record], then=then)


def _response(producer: ProducerStamp) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }


def _fenced(transaction: Transaction, current: ProducerStamp) -> KafkaError:
    return KafkaError(
        ErrorCode.producer_fenced,
        f"{transaction.transactional_id!r} has producer id and epoch {tuple(transaction.producer)},"
        f" the request names {tuple(current)}",
    )
