"""Completes a decided transaction: writes a marker to each of its partitions, then the Complete record.

The order of the steps makes this safe wherever the broker stops:

1. The Prepare record is committed. No marker may be written before that: a broker that loses the record would find the
   transaction open and could decide it differently, while some partitions already have a marker.
2. Each partition gets its marker. If the broker stops here, the next coordinator finds Prepare and writes all markers
   again. A second marker changes nothing, because no partition accepts records of the producer's next transaction yet.
3. When all markers are committed, the Complete record is written. The next transaction may begin.

Each step that has to wait continues as a timer's operation, so it ends when the shard is unloaded. This also stops a
coordinator that was replaced and does not know it yet: partitions refuse its markers
(TRANSACTION_COORDINATOR_FENCED), it retries with growing delays, and it is unloaded when it learns of the new leader.
"""

import functools
import itertools
import logging
from asyncio import Future

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.coordination.shard import Outcome
from skep.coordination.transactions.transaction import V2, Transaction, in_order
from skep.coordination.transactions.transaction_state import State
from skep.coordination.transactions.transaction_table import CompletionProgress, TransactionTable

logger = logging.getLogger(__name__)

MARKERS_AT_ONCE = 20
MARKERS_S = 0.005
"""After this time the event loop gets its turn. The first append to a partition creates its files, which takes 1 to 3
ms."""
TRIES_FOR_UNKNOWN = 6
"""About three seconds in which to learn of a topic that another broker knew."""


def begin(table: TransactionTable, transaction: Transaction, *, is_resumed: bool = False) -> None:
    """Starts the completion. Must be called when the Prepare record is in the log, committed or not."""
    transactional_id = transaction.transactional_id
    table.completions[transactional_id] = CompletionProgress(transaction.partitions, is_resumed=is_resumed)
    _schedule(table, transactional_id, 0)


def _schedule(table: TransactionTable, transactional_id: str, delay_ms: int) -> None:
    table.schedule(("finish", transactional_id), delay_ms, lambda table: advance(table, transactional_id))


def advance(table: TransactionTable, transactional_id: str) -> Outcome:
    """Takes the steps that are possible now, and schedules the rest.

    A marked partition is recorded as such at once: it stays marked whether or not the Complete record is written.
    """
    progress = table.completions.get(transactional_id)
    if progress is None:
        return Outcome()
    progress.is_retrying = False
    transaction = table.transactions[transactional_id]
    if not progress.is_decided:
        _wait_for_decision(table, transactional_id, progress)
    if progress.is_decided:
        _mark_all(table, transaction, progress)
    if progress.unmarked or not progress.is_decided:
        return Outcome()
    return Outcome(
        records=[transaction.completed(table.clock.now_ms()).record],
        then=lambda: _forget(table, transactional_id, progress),
    )


def _forget(table: TransactionTable, transactional_id: str, progress: CompletionProgress) -> None:
    # Only this completion: the next transaction may have begun, and been decided, since the Complete record.
    if table.completions.get(transactional_id) is progress:
        del table.completions[transactional_id]


def _wait_for_decision(table: TransactionTable, transactional_id: str, progress: CompletionProgress) -> None:
    try:
        committed = table.markers.committed(table.partition)
    except (KafkaError, StorageError) as error:
        _retry(table, transactional_id, progress, error)
        return
    if committed is None:
        progress.is_decided = True
        return

    def settled(future: "Future[None]") -> None:
        if (error := _failure(future)) is None:
            # Set here instead of asking again later: others append to the partition all the time, and under load
            # there would always be something that is not committed yet.
            progress.is_decided = True
            _schedule(table, transactional_id, 0)
        else:
            _retry(table, transactional_id, progress, error)

    committed.add_done_callback(settled)


def _mark_all(table: TransactionTable, transaction: Transaction, progress: CompletionProgress) -> None:
    """Writes markers up to the limit. The rest, and what was refused, is scheduled for later."""
    transactional_id = transaction.transactional_id
    if progress.unwritten is None:
        progress.unwritten = in_order(progress.unmarked - progress.in_flight)
    monotonic = table.clock.monotonic
    until = monotonic() + MARKERS_S
    for written, partition in enumerate(itertools.islice(progress.unwritten, MARKERS_AT_ONCE), 1):
        refused = _mark(table, transaction, progress, partition)
        progress.last_error = refused or progress.last_error
        if written == MARKERS_AT_ONCE or monotonic() >= until:
            _schedule(table, transactional_id, 0)
            return
    progress.unwritten = None
    if progress.last_error is not None and not progress.unmarked <= progress.in_flight:
        # A marker was refused in this pass, or was written and lost while the pass went on.
        _retry(table, transactional_id, progress, progress.last_error)


def _mark(
    table: TransactionTable, transaction: Transaction, progress: CompletionProgress, partition: TopicPartition
) -> Exception | None:
    """Writes the marker of one partition. Returns the error when the partition cannot take it now."""
    is_committed = transaction.state is State.PREPARE_COMMIT
    try:
        committed = table.markers.write(
            table.partition,
            partition,
            transaction.producer,
            is_committed=is_committed,
            raises_epoch=transaction.version >= V2,
        )
    except (KafkaError, StorageError) as error:
        if not _is_ended(table, transaction, progress, partition, error):
            return error
        committed = None
    if committed is None:
        progress.unmarked.discard(partition)
    else:
        progress.in_flight.add(partition)
        committed.add_done_callback(
            functools.partial(_settled, table, transaction.transactional_id, progress, partition)
        )
    return None


def _is_ended(
    table: TransactionTable,
    transaction: Transaction,
    progress: CompletionProgress,
    partition: TopicPartition,
    refusal: Exception,
) -> bool:
    """Returns whether the partition, which refused the marker, has no open transaction that needs one."""
    code = refusal.code if isinstance(refusal, KafkaError) else None
    reason = "the topic is deleted"
    if code is ErrorCode.invalid_producer_epoch:
        # The partition has seen a later epoch of the producer. If that epoch came with a marker, the transaction has
        # ended. If it came with records, the transaction is still open: to report it complete would lose what was
        # promised to its producer, and readers would wait for ever.
        try:
            if table.markers.is_open(partition, transaction.producer_id):
                logger.error(
                    "%s: %s, and the transaction of %r is open: only a marker of that epoch can end it",
                    partition,
                    refusal,
                    transaction.transactional_id,
                )
                return False
        except (KafkaError, StorageError):
            return False
        reason = "a later epoch has ended the transaction there"
    elif code is not ErrorCode.unknown_topic_or_partition:
        return False
    elif progress.is_resumed and progress.failures < TRIES_FOR_UNKNOWN:
        # The broker that decided the transaction knew the topic. Our image may be older than our leadership.
        return False
    logger.info("%s: no marker of %r: %s", partition, transaction.transactional_id, reason)
    return True


def _settled(
    table: TransactionTable,
    transactional_id: str,
    progress: CompletionProgress,
    partition: TopicPartition,
    future: "Future[None]",
) -> None:
    progress.in_flight.discard(partition)
    if (error := _failure(future)) is not None:
        # Whether the marker was lost does not matter: writing it again is harmless, whichever broker leads by then.
        progress.last_error = error
        _retry(table, transactional_id, progress, error)
        return
    progress.unmarked.discard(partition)
    if not progress.unmarked:
        _schedule(table, transactional_id, 0)


def _retry(table: TransactionTable, transactional_id: str, progress: CompletionProgress, error: BaseException) -> None:
    if progress.is_retrying:
        # When a broker dies, its hundred partitions fail together. That counts as one failure.
        return
    progress.is_retrying = True
    delay_ms = progress.retry_ms()
    logger.warning("completing the transaction of %r failed, retrying in %d ms: %s", transactional_id, delay_ms, error)
    _schedule(table, transactional_id, delay_ms)


def _failure(future: "Future[None]") -> BaseException | None:
    return StorageError("the sync was given up") if future.cancelled() else future.exception()
