"""InitProducerId with a transactional id: whoever asks becomes its producer, and the one before is fenced.

A producer that names the id and epoch it has (KIP-360) asks for its own next epoch, after an error that it got over. It
is refused when somebody else has become the producer meanwhile. Its answer may be lost, so the epoch before the last is
remembered: asked again with that one, the same answer is given. After a restart it is not known any more, as in Kafka;
the producer is then refused, and ends.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import Outcome, ProducerStamp
from skep.coordination.transactions.decision import abort_and_fence
from skep.coordination.transactions.transaction import NO_EPOCH, Transaction, is_exhausted, new_transaction
from skep.coordination.transactions.transaction_state import State

if TYPE_CHECKING:
    from skep.coordination.transactions.transaction_shard import TransactionShard


class Initialization(NamedTuple):
    """What is asked for. ``current`` is who the client believes to be; None: nobody yet."""

    transactional_id: str
    timeout_ms: int
    current: ProducerStamp | None


class _NeedsProducerId:
    def __repr__(self) -> str:
        return "NEEDS_PRODUCER_ID"


NEEDS_PRODUCER_ID: Any = _NeedsProducerId()
"""As a response: ask again with a new producer id."""

ABORTING: dict[str, Any] = {
    "error_code": ErrorCode.concurrent_transactions,
    "producer_id": -1,
    "producer_epoch": NO_EPOCH,
}


def initialize(shard: "TransactionShard", asked: Initialization, new_producer_id: int | None) -> Outcome:
    """The response is an answer's body, or NEEDS_PRODUCER_ID when one is needed and there is none."""
    transaction = shard.transactions.get(asked.transactional_id)
    if transaction is None:
        return _first(shard, asked, new_producer_id)
    if asked.current is not None:
        _check_is_of_this_id(transaction, asked.current)
    if transaction.is_ending:
        raise KafkaError(
            ErrorCode.concurrent_transactions, f"the last transaction of {asked.transactional_id!r} is being ended"
        )
    if transaction.state is State.ONGOING:
        if asked.current is not None and asked.current != transaction.producer:
            # Kafka aborts here all the same, and so lets a producer that was fenced end its successor's transaction.
            raise _fenced(transaction, asked.current)
        # The answer is to ask again. When the transaction has ended, that gives the next epoch but one.
        return abort_and_fence(shard, transaction, ABORTING)
    if is_exhausted(transaction.producer_epoch) and asked.current in (None, transaction.producer):
        if new_producer_id is None:
            return Outcome(NEEDS_PRODUCER_ID)
        return _become(shard, transaction, asked, ProducerStamp(new_producer_id, 0))
    if asked.current is None or asked.current == transaction.producer:
        return _become(
            shard, transaction, asked, ProducerStamp(transaction.producer_id, transaction.producer_epoch + 1)
        )
    if asked.current.producer_epoch != shard.earlier_epochs.get(asked.transactional_id):
        raise _fenced(transaction, asked.current)
    # The same question as the last time: the same answer, and nothing has changed.
    return Outcome(_answer(transaction.producer))


def _first(shard: "TransactionShard", asked: Initialization, new_producer_id: int | None) -> Outcome:
    limit = shard.settings().max_transactional_ids
    if len(shard.transactions) >= limit:
        raise KafkaError(ErrorCode.policy_violation, f"there are {limit} transactional ids already")
    if new_producer_id is None:
        return Outcome(NEEDS_PRODUCER_ID)
    transaction = new_transaction(asked.transactional_id, new_producer_id, asked.timeout_ms, shard.clock.now_ms())
    return Outcome(_answer(transaction.producer), [transaction.record])


def _check_is_of_this_id(transaction: Transaction, current: ProducerStamp) -> None:
    """Its own producer id, or the one before if that was left only because its epochs were used up."""
    if current.producer_id == transaction.producer_id:
        return
    if current.producer_id != transaction.previous_producer_id or not is_exhausted(current.producer_epoch):
        raise _fenced(transaction, current)


def _become(
    shard: "TransactionShard", transaction: Transaction, asked: Initialization, producer: ProducerStamp
) -> Outcome:
    changed = transaction.with_producer(producer, asked.timeout_ms, shard.clock.now_ms())

    def then() -> None:
        if asked.current is None:
            shard.earlier_epochs.pop(asked.transactional_id, None)
        else:
            shard.earlier_epochs[asked.transactional_id] = asked.current.producer_epoch

    return Outcome(_answer(producer), [changed.record], then=then)


def _answer(producer: ProducerStamp) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }


def _fenced(transaction: Transaction, current: ProducerStamp) -> KafkaError:
    return KafkaError(
        ErrorCode.producer_fenced,
        f"the producer of {transaction.transactional_id!r} is {tuple(transaction.producer)}, not {tuple(current)}",
    )
