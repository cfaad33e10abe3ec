"""Decides a transaction: EndTxn, and the aborts by InitProducerId and by timeout."""

from collections.abc import Callable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_PRODUCER_ID
from skep.coordination.shard import Freshness, Outcome, ProducerStamp
from skep.coordination.transactions import completion
from skep.coordination.transactions.transaction import HIGHEST_EPOCH, Transaction, is_exhausted
from skep.coordination.transactions.transaction_state import ENDING, ENDING_V2, REPEATED_ENDING_V2, State
from skep.coordination.transactions.transaction_table import NEEDS_PRODUCER_ID, TransactionTable


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
        raise _refused(transaction, commit, result)
    # PROVEN: a coordinator that was succeeded may not know of the producer's last transaction. It would take the one
    # before for the last, and report a transaction as committed that it knows nothing about.
    return Outcome(response, freshness=Freshness.PROVEN)


def end_v2(
    table: TransactionTable,
    transactional_id: str,
    producer: ProducerStamp,
    *,
    commit: bool,
    new_producer_id: int | None,
) -> Outcome:
    """EndTxn of transactions v2 (KIP-890). The response is the producer of the next transaction: the same id with the
    next epoch, or another id. It is NEEDS_PRODUCER_ID when another id is needed and none is given.

    A request with the epoch before the current one repeats the EndTxn of the last transaction, whose response was lost.
    It may also come from a producer whose transaction has timed out: it can abort, and continues with the epoch that
    fenced it.
    """
    transaction = table.transaction(transactional_id)
    if transaction.was_ended_by(producer):
        code = REPEATED_ENDING_V2[transaction.state, commit]
        if code is not ErrorCode.none:
            raise _refused(transaction, commit, code)
        if transaction.producer_epoch != HIGHEST_EPOCH:
            return Outcome(transaction.producer, freshness=Freshness.PROVEN)
        # Fenced by timeout with the highest epoch, which no producer may have: it needs another id.
        result: State | ErrorCode = State.PREPARE_ABORT
    else:
        transaction.check_producer(producer)
        result = ENDING_V2[transaction.state, commit]
    if not isinstance(result, State):
        raise _refused(transaction, commit, result)
    if not is_exhausted(transaction.producer_epoch):
        new_producer_id = NO_PRODUCER_ID
    elif new_producer_id is None:
        return Outcome(NEEDS_PRODUCER_ID)
    prepared = transaction.prepared_v2(result, new_producer_id, table.clock.now_ms())

    def then() -> None:
        table.earlier_epochs.pop(transactional_id, None)
        completion.begin(table, prepared)

    return Outcome(prepared.successor, [prepared.record], then=then)


def _refused(transaction: Transaction, commit: bool, code: ErrorCode) -> KafkaError:
    wish = "commit" if commit else "abort"
    return KafkaError(
        code, f"cannot {wish} {transaction.transactional_id!r}: its transaction is {transaction.state.label}"
    )


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
