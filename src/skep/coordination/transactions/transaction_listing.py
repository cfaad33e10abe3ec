"""The contents of ListTransactions and DescribeTransactions responses, read from a shard."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.shard import Freshness, Outcome
from skep.coordination.transactions.transaction import by_topic
from skep.coordination.transactions.transaction_state import State
from skep.coordination.transactions.transaction_table import TransactionTable

IDS_AT_ONCE = 100
"""Transactional ids checked in one slice."""
_EPOCH = datetime.fromtimestamp(0, UTC)


class ListFilter(NamedTuple):
    """Empty ``producer_ids`` and a negative duration match everything."""

    states: frozenset[State] | None
    """None matches any state. Empty matches none: the client named only states that do not exist."""
    producer_ids: Collection[int]
    longer_than_ms: int


def listed(table: TransactionTable, wanted: ListFilter) -> Work[list[dict[str, Any]]]:
    now_ms = table.clock.now_ms()
    found = []
    for number, transaction in enumerate(list(table.transactions.values())):
        if not number % IDS_AT_ONCE:
            yield
        if wanted.states is not None and transaction.state not in wanted.states:
            continue
        if wanted.producer_ids and transaction.producer_id not in wanted.producer_ids:
            continue
        if wanted.longer_than_ms >= 0 and now_ms - transaction.start_ms <= wanted.longer_than_ms:
            continue
        found.append(
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.label,
            }
        )
    return found


def describe(table: TransactionTable, transactional_id: str) -> Outcome:
    """Describes one transaction. While it is completed, only the partitions without a committed marker are shown."""
    transaction = table.transactions.get(transactional_id)
    if transaction is None:
        raise KafkaError(ErrorCode.transactional_id_not_found, f"transactional id {transactional_id!r} does not exist")
    progress = table.completions.get(transactional_id)
    topics = by_topic(transaction.partitions if progress is None else progress.unmarked)
    return Outcome(
        {
            "error_code": ErrorCode.none,
            "transactional_id": transactional_id,
            "transaction_state": transaction.state.label,
            "transaction_timeout": timedelta(milliseconds=transaction.timeout_ms),
            # -1 when it has not begun: one millisecond before the epoch, which is -1 on the wire.
            "transaction_start_time": _EPOCH + timedelta(milliseconds=transaction.start_ms),
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        },
        # PROVEN: operators end a hanging transaction by hand on the strength of this response.
        freshness=Freshness.PROVEN,
    )
