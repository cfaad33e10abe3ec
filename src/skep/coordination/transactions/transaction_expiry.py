"""Aborts transactions that are open for too long, and deletes transactional ids that are no longer used.

Two timers scan for them. One operation aborts one transaction, or checks and deletes a limited number of ids, so that
no operation is long and no write is too large. When there is more to do, the next operation follows at once.
"""

import logging
from collections.abc import Iterator

from skep.coordination.shard import CoordinatorRecord, Outcome
from skep.coordination.transaction_records import TransactionLogKey
from skep.coordination.transactions.decision import abort_and_fence
from skep.coordination.transactions.transaction_state import EXPIRING
from skep.coordination.transactions.transaction_table import TransactionTable

logger = logging.getLogger(__name__)

IDS_AT_ONCE = 100
"""Ids deleted by one operation. Each has up to 32,767 bytes."""
LOOKED_AT_ONCE = 1_000
"""Ids checked by one operation, of the hundred thousand that there may be."""
_NOW_MS = 0
_TIMEOUTS = ("time out transactions",)
_IDS = ("expire transactional ids",)


def schedule_all(table: TransactionTable) -> None:
    _schedule_timeouts(table)
    _schedule_ids(table)


def _schedule_timeouts(table: TransactionTable) -> None:
    table.schedule(_TIMEOUTS, table.config.transaction_abort_interval_ms, abort_timed_out)


def _schedule_ids(table: TransactionTable) -> None:
    table.schedule(_IDS, table.config.transaction_remove_interval_ms, remove_expired)


def abort_timed_out(table: TransactionTable) -> Outcome:
    """The timer's operation: aborts the next transaction that is past its timeout, and fences its producer."""
    # The rest is put back when the record is written. If it cannot be written, the next try begins a new scan.
    left, table.unscanned_ongoing = table.unscanned_ongoing or list(reversed(table.ongoing)), []
    now_ms = table.clock.now_ms()

    def continue_scan() -> None:
        table.unscanned_ongoing = left
        if left:
            table.schedule(_TIMEOUTS, _NOW_MS, abort_timed_out)
        else:
            _schedule_timeouts(table)

    for transactional_id in _taken(left, LOOKED_AT_ONCE):
        transaction = table.transactions.get(transactional_id)
        if transaction is not None and transaction.has_timed_out(now_ms):
            logger.info(
                "%r: aborting a transaction open for more than %d ms",
                transactional_id,
                transaction.timeout_ms,
            )
            return abort_and_fence(table, transaction, and_then=continue_scan)
    return Outcome(then=continue_scan)


def remove_expired(table: TransactionTable) -> Outcome:
    """The timer's operation: deletes ids that have had no transaction for ``transactional.id.expiration.ms``."""
    left, table.unscanned_ids = table.unscanned_ids or list(reversed(table.transactions)), []
    latest_ms = table.clock.now_ms() - table.config.transactional_id_expiration_ms
    records: list[CoordinatorRecord] = []
    for transactional_id in _taken(left, LOOKED_AT_ONCE):
        transaction = table.transactions.get(transactional_id)
        if transaction is not None and transaction.state in EXPIRING and transaction.update_ms <= latest_ms:
            records.append(CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), None))
            if len(records) == IDS_AT_ONCE:
                break

    def then() -> None:
        table.unscanned_ids = left
        if left:
            table.schedule(_IDS, _NOW_MS, remove_expired)
        else:
            _schedule_ids(table)

    return Outcome(records=records, then=then)


def _taken(ids: list[str], limit: int) -> Iterator[str]:
    """Removes up to ``limit`` ids from the end of the list, one by one."""
    for _ in range(min(limit, len(ids))):
        yield ids.pop()
