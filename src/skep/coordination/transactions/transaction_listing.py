"""What ListTransactions and DescribeTransactions show of a shard."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.shard import Freshness, Outcome
from skep.coordination.transactions.transaction import by_topic
from skep.coordination.transactions.transaction_state import State

if TYPE_CHECKING:
    from skep.coordination.transactions.transaction_shard import TransactionShard

IDS_AT_ONCE = 100
"""Looked at without a pause."""
_EPOCH = datetime.fromtimestamp(0, UTC)


class ListFilter(NamedTuple):
    """No producer ids and a duration below 0 let everything through."""

    states: frozenset[State] | None
    """None: any. Empty: the client named only states that do not exist, so none."""
    producer_ids: Collection[int]
    longer_than_ms: int


def listed(shard: "TransactionShard", wanted: ListFilter) -> Work[list[dict[str, Any]]]:
    now_ms = shard.clock.now_ms()
    found = []
    for number, transaction in enumerate(list(shard.transactions.values())):
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


def describe(shard: "TransactionShard", transactional_id: str) -> Outcome:
    """Of one that is being ended only the partitions whose marker is still missing are shown."""
    transaction = shard.transactions.get(transactional_id)
    if transaction is None:
        raise KafkaError(ErrorCode.transactional_id_not_found, f"nobody is known as {transactional_id!r}")
    progress = shard.finishing.get(transactional_id)
    topics = by_topic(transaction.partitions if progress is None else progress.unmarked)
    return Outcome(
        {
            "error_code": ErrorCode.none,
            "transactional_id": transactional_id,
            "transaction_state": transaction.state.label,
            "transaction_timeout": timedelta(milliseconds=transaction.timeout_ms),
            # -1 when it has not begun: a millisecond before the epoch, which is what goes over the wire.
            "transaction_start_time": _EPOCH + timedelta(milliseconds=transaction.start_ms),
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        },
        # Whoever finds a transaction that seems to hang ends it by hand.
        freshness=Freshness.PROVEN,
    )
