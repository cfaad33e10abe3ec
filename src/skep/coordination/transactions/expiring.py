"""Transactions that are open for too long, and transactional ids that nobody uses any more.

Both are looked for from time to time. One transaction is aborted in a go, and a limited number of ids deleted, so that
no write is too large; when there are more, the next go follows at once.
"""

import logging
from typing import TYPE_CHECKING

from skep.coordination.shard import CoordinatorRecord, Outcome
from skep.coordination.transaction_records import TransactionLogKey
from skep.coordination.transactions.ending import abort_and_fence
from skep.coordination.transactions.states import EXPIRING

if TYPE_CHECKING:
    from skep.coordination.transactions.shard import TransactionShard

logger = logging.getLogger(__name__)

IDS_AT_ONCE = 100
"""Of up to 32,767 bytes each."""
_SOON_MS = 1
_TIMEOUTS = ("time out transactions",)
_IDS = ("expire transactional ids",)


def schedule_all(shard: "TransactionShard") -> None:
    _schedule_timeouts(shard)
    _schedule_ids(shard)


def _schedule_timeouts(shard: "TransactionShard") -> None:
    shard.schedule(_TIMEOUTS, shard.settings().transaction_abort_interval_ms, abort_timed_out)


def _schedule_ids(shard: "TransactionShard") -> None:
    shard.schedule(_IDS, shard.settings().transaction_remove_interval_ms, remove_expired)


def abort_timed_out(shard: "TransactionShard") -> Outcome:
    """The timer's operation: the first transaction that is past its timeout is aborted, its producer fenced."""
    now_ms = shard.clock.now_ms()
    for transactional_id in shard.ongoing:
        transaction = shard.transactions[transactional_id]
        if transaction.has_timed_out(now_ms):
            logger.info("%r: open for more than %d ms, aborted", transactional_id, transaction.timeout_ms)
            return abort_and_fence(
                shard, transaction, and_then=lambda: shard.schedule(_TIMEOUTS, _SOON_MS, abort_timed_out)
            )
    return Outcome(then=lambda: _schedule_timeouts(shard))


def remove_expired(shard: "TransactionShard") -> Outcome:
    """The timer's operation: ids without a transaction for ``transactional.id.expiration.ms`` are deleted."""
    latest_ms = shard.clock.now_ms() - shard.settings().transactional_id_expiration_ms
    expired = [
        transaction.transactional_id
        for transaction in shard.transactions.values()
        if transaction.state in EXPIRING and transaction.update_ms <= latest_ms
    ]
    records = [
        CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), None)
        for transactional_id in expired[:IDS_AT_ONCE]
    ]
    if len(expired) > IDS_AT_ONCE:
        return Outcome(records=records, then=lambda: shard.schedule(_IDS, _SOON_MS, remove_expired))
    return Outcome(records=records, then=lambda: _schedule_ids(shard))
