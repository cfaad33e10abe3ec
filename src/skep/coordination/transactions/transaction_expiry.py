"""Transactions that are open for too long, and transactional ids that nobody uses any more.

Both are looked for from time to time. One transaction is aborted in a go, and a limited number of ids looked at and
deleted, so that no go is long and no write is too large; when there are more, the next go follows at once.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from skep.coordination.shard import CoordinatorRecord, Outcome
from skep.coordination.transaction_records import TransactionLogKey
from skep.coordination.transactions.decision import abort_and_fence
from skep.coordination.transactions.transaction_state import EXPIRING

if TYPE_CHECKING:
    from skep.coordination.transactions.transaction_shard import TransactionShard

logger = logging.getLogger(__name__)

IDS_AT_ONCE = 100
"""Deleted by one operation. Of up to 32,767 bytes each."""
LOOKED_AT_ONCE = 1_000
"""Ids looked at by one operation, of the hundred thousand that there may be."""
_NOW_MS = 0
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
    """The timer's operation: the next transaction that is past its timeout is aborted, its producer fenced."""
    # The rest is put back when this is written. If it cannot be, the next try begins anew.
    left, shard.unlooked_ongoing = shard.unlooked_ongoing or list(reversed(shard.ongoing)), []
    now_ms = shard.clock.now_ms()

    def go_on() -> None:
        shard.unlooked_ongoing = left
        if left:
            shard.schedule(_TIMEOUTS, _NOW_MS, abort_timed_out)
        else:
            _schedule_timeouts(shard)

    for transactional_id in _taken(left, LOOKED_AT_ONCE):
        transaction = shard.transactions.get(transactional_id)
        if transaction is not None and transaction.has_timed_out(now_ms):
            logger.info("%r: open for more than %d ms, aborted", transactional_id, transaction.timeout_ms)
            return abort_and_fence(shard, transaction, and_then=go_on)
    return Outcome(then=go_on)


def remove_expired(shard: "TransactionShard") -> Outcome:
    """The timer's operation: ids without a transaction for ``transactional.id.expiration.ms`` are deleted."""
    left, shard.unlooked_ids = shard.unlooked_ids or list(reversed(shard.transactions)), []
    latest_ms = shard.clock.now_ms() - shard.settings().transactional_id_expiration_ms
    records: list[CoordinatorRecord] = []
    for transactional_id in _taken(left, LOOKED_AT_ONCE):
        transaction = shard.transactions.get(transactional_id)
        if transaction is not None and transaction.state in EXPIRING and transaction.update_ms <= latest_ms:
            records.append(CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), None))
            if len(records) == IDS_AT_ONCE:
                break

    def then() -> None:
        shard.unlooked_ids = left
        if left:
            shard.schedule(_IDS, _NOW_MS, remove_expired)
        else:
            _schedule_ids(shard)

    return Outcome(records=records, then=then)


def _taken(ids: list[str], limit: int) -> Iterator[str]:
    """Takes ids off the end of the list, one by one."""
    for _ in range(min(limit, len(ids))):
        yield ids.pop()
