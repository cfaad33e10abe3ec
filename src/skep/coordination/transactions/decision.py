"""Decides a transaction: EndTxn, and the aborts by InitProducerId and by timeout."""

from collections.abc import Callable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import Freshness, Outcome, ProducerStamp
from skep.coordination.transactions import completion
from skep.coordination.transactions.transaction import Transaction
from skep.coordination.transactions.transaction_state import ENDING, State
from skep.coordination.transactions.transaction_table import TransactionTable


def end(
    table: TransactionTable, transactional_id: str, producer: ProducerStamp, *, commit: bool, response: Any
) -> Outcome:
    """EndTxn. ``response`` is sent when the decision is committed; the markers follow (``completion.py``)."""
    transaction = table.transaction_of(transactional_id, producer)
    result = ENDING[transaction.state, commit]
    if isinstance(result, State):
        prepared = transaction.prepared(result, table.clock.now_ms())
        return Outcome(response, [prepared.record], then=lambda: completion.begin(table, prepared))
    if result is not ErrorCode.none:
        wish = "commit" if commit else "abort"
        raise KafkaError(result, f"cannot {wish} {transactional_id!r}: its transaction is {transaction.state.label}")
    # PROVEN: a coordinator that was succeeded may not know of the producer's last transaction. It would take the one
    # before for the last, and report a transaction as committed that it knows nothing about.
    return Outcome(response, freshness=Freshness.PROVEN)


def abort_and_fence(
    table: TransactionTable, transaction: Transaction, response: Any = None, and_then: Callable[[], None] | None = None
) -> Outcome:
    """Aborts the open transaction and fences its producer. Calls ``and_then`` once the record is in the log."""

    def then() -> None:
        table.earlier_epochs.pop(transaction.transactional_id, None)
        completion.begin(table, fenced)
        if and_then is not None:
            and_then()

    fenced = transaction.fenced(table.clock.now_ms())
    return Outcome(response, [fenced.record], then=then)
