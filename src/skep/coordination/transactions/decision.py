"""Deciding a transaction: EndTxn, and the aborts that nobody asked for in so many words."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import Freshness, Outcome, ProducerStamp
from skep.coordination.transactions import completion as finishing
from skep.coordination.transactions.transaction import Transaction
from skep.coordination.transactions.transaction_state import ENDING, State

if TYPE_CHECKING:
    from skep.coordination.transactions.transaction_shard import TransactionShard


def end(
    shard: "TransactionShard", transactional_id: str, producer: ProducerStamp, *, commit: bool, answer: Any
) -> Outcome:
    """EndTxn. ``answer`` goes out when the decision can no longer be lost; the markers follow (``finishing``)."""
    transaction = shard.transaction_of(transactional_id, producer)
    result = ENDING[transaction.state, commit]
    if isinstance(result, State):
        prepared = transaction.prepared(result, shard.clock.now_ms())
        return Outcome(answer, [prepared.record], then=lambda: finishing.begin(shard, prepared))
    if result is not ErrorCode.none:
        wish = "commit" if commit else "abort"
        raise KafkaError(result, f"{transactional_id!r} is {transaction.state.label}, and is asked to {wish}")
    # Proven: to a coordinator that was succeeded, the producer's last transaction but one may be the last, and it
    # would call one committed of which it knows nothing.
    return Outcome(answer, freshness=Freshness.PROVEN)


def abort_and_fence(
    shard: "TransactionShard", transaction: Transaction, answer: Any = None, and_then: Callable[[], None] | None = None
) -> Outcome:
    """The open transaction is aborted, and its producer's epoch is over. ``and_then`` is called if that is written."""

    def then() -> None:
        shard.earlier_epochs.pop(transaction.transactional_id, None)
        finishing.begin(shard, fenced)
        if and_then is not None:
            and_then()

    fenced = transaction.fenced(shard.clock.now_ms())
    return Outcome(answer, [fenced.record], then=then)
