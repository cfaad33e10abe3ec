"""From the decision to the end: markers into every partition of a transaction, then the record that it is complete.

The order is what makes it safe, wherever the broker stops:

1. The Prepare record is committed. Before that no marker may be written: a broker that loses the record would find the
   transaction open and might decide otherwise, with some partitions marked already.
2. Every partition gets its marker. Whoever takes over from a broker that stops here finds Prepare and writes all of
   them again; a second marker changes nothing, for no partition takes records of the producer's next transaction yet.
3. All markers are committed, then the Complete record is written. The next transaction may begin.

Each step that has to wait comes back as a timer's operation, so it ends by itself with the shard. That is also how a
coordinator stops that was replaced and does not know it yet: partitions refuse its markers
(TRANSACTION_COORDINATOR_FENCED), it tries again more and more slowly, and is unloaded when it learns who leads.
"""

import functools
import itertools
import logging
from asyncio import Future
from collections.abc import Iterator
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.coordination.shard import Outcome
from skep.coordination.transactions.transaction import Transaction, in_order
from skep.coordination.transactions.transaction_state import State

if TYPE_CHECKING:
    from skep.coordination.transactions.transaction_shard import TransactionShard

logger = logging.getLogger(__name__)

MARKERS_AT_ONCE = 20
MARKERS_S = 0.005
"""Then everybody else may have a turn of the event loop. The first append to a partition makes its files: 1 to 3 ms."""
FIRST_RETRY_MS = 50
LONGEST_RETRY_MS = 5_000
TRIES_FOR_UNKNOWN = 6
"""Some three seconds in which to hear of a topic that another broker knew."""


class Finishing:
    """How far a decided transaction has come.

    ``unmarked`` are the partitions whose marker is not committed yet, ``underway`` those of them whose marker may still
    become so; ``is_retrying``: the others will be tried again. ``unwritten`` gives those that a pass over all of them
    has not come to yet, None between two passes; ``last_error`` is why one is missing after it. ``is_resumed``: it was
    decided before this shard was loaded, perhaps on another broker.
    """

    __slots__ = (
        "failures",
        "is_decided",
        "is_resumed",
        "is_retrying",
        "last_error",
        "underway",
        "unmarked",
        "unwritten",
    )

    def __init__(self, partitions: frozenset[TopicPartition], *, is_resumed: bool) -> None:
        self.is_decided = False
        self.is_resumed = is_resumed
        self.unmarked = set(partitions)
        self.underway: set[TopicPartition] = set()
        self.unwritten: Iterator[TopicPartition] | None = None
        self.last_error: BaseException | None = None
        self.failures = 0
        self.is_retrying = False

    def retry_ms(self) -> int:
        """How long to leave a partition, a broker, or a disk, that could not take what it was given."""
        self.failures += 1
        return int(min(FIRST_RETRY_MS << min(self.failures - 1, 10), LONGEST_RETRY_MS))


def begin(shard: "TransactionShard", transaction: Transaction, *, is_resumed: bool = False) -> None:
    """The transaction is decided. To be called when its Prepare record is in the log, committed or not."""
    transactional_id = transaction.transactional_id
    shard.finishing[transactional_id] = Finishing(transaction.partitions, is_resumed=is_resumed)
    _schedule(shard, transactional_id, 0)


def _schedule(shard: "TransactionShard", transactional_id: str, delay_ms: int) -> None:
    shard.schedule(("finish", transactional_id), delay_ms, lambda shard: go_on(shard, transactional_id))


def go_on(shard: "TransactionShard", transactional_id: str) -> Outcome:
    """Does what can be done now, and sees to it that the rest follows.

    That a partition is marked stays true whatever becomes of the record, so it is noted at once.
    """
    progress = shard.finishing.get(transactional_id)
    if progress is None:
        return Outcome()
    progress.is_retrying = False
    transaction = shard.transactions[transactional_id]
    if not progress.is_decided:
        _wait_for_decision(shard, transactional_id, progress)
    if progress.is_decided:
        _mark_all(shard, transaction, progress)
    if progress.unmarked or not progress.is_decided:
        return Outcome()
    return Outcome(
        records=[transaction.completed(shard.clock.now_ms()).record],
        then=lambda: _forget(shard, transactional_id, progress),
    )


def _forget(shard: "TransactionShard", transactional_id: str, progress: Finishing) -> None:
    # Only this one: what follows from the Complete record may have begun the next.
    if shard.finishing.get(transactional_id) is progress:
        del shard.finishing[transactional_id]


def _wait_for_decision(shard: "TransactionShard", transactional_id: str, progress: Finishing) -> None:
    try:
        committed = shard.markers.decided(shard.partition)
    except (KafkaError, StorageError) as error:
        _try_again(shard, transactional_id, progress, error)
        return
    if committed is None:
        progress.is_decided = True
        return

    def settled(future: "Future[None]") -> None:
        if (error := _failure(future)) is None:
            # Noted here, not asked again: by then others have written, and under load that would never end.
            progress.is_decided = True
            _schedule(shard, transactional_id, 0)
        else:
            _try_again(shard, transactional_id, progress, error)

    committed.add_done_callback(settled)


def _mark_all(shard: "TransactionShard", transaction: Transaction, progress: Finishing) -> None:
    """Up to the limit; what is left over or refused comes later."""
    transactional_id = transaction.transactional_id
    if progress.unwritten is None:
        progress.unwritten = in_order(progress.unmarked - progress.underway)
    monotonic = shard.clock.monotonic
    until = monotonic() + MARKERS_S
    for written, partition in enumerate(itertools.islice(progress.unwritten, MARKERS_AT_ONCE), 1):
        refused = _mark(shard, transaction, progress, partition)
        progress.last_error = refused or progress.last_error
        if written == MARKERS_AT_ONCE or monotonic() >= until:
            _schedule(shard, transactional_id, 0)
            return
    progress.unwritten = None
    if progress.last_error is not None and not progress.unmarked <= progress.underway:
        # Refused in this pass, or written and lost while it went on.
        _try_again(shard, transactional_id, progress, progress.last_error)


def _mark(
    shard: "TransactionShard", transaction: Transaction, progress: Finishing, partition: TopicPartition
) -> Exception | None:
    """Why the partition could not take its marker now."""
    is_committed = transaction.state is State.PREPARE_COMMIT
    try:
        committed = shard.markers.write(shard.partition, partition, transaction.producer, is_committed=is_committed)
    except (KafkaError, StorageError) as error:
        if not _is_ended(shard, transaction, progress, partition, error):
            return error
        committed = None
    if committed is None:
        progress.unmarked.discard(partition)
    else:
        progress.underway.add(partition)
        committed.add_done_callback(
            functools.partial(_settled, shard, transaction.transactional_id, progress, partition)
        )
    return None


def _is_ended(
    shard: "TransactionShard",
    transaction: Transaction,
    progress: Finishing,
    partition: TopicPartition,
    refusal: Exception,
) -> bool:
    """Whether there is nothing to be ended in a partition that has refused the marker."""
    code = refusal.code if isinstance(refusal, KafkaError) else None
    reason = "the topic is deleted"
    if code is ErrorCode.invalid_producer_epoch:
        # A later epoch is there. It comes with a marker; if it has come with records, the transaction is still open,
        # and to call it complete would lose what was promised to its producer and leave readers waiting for ever.
        try:
            if shard.markers.is_open(partition, transaction.producer_id):
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
        # Another broker knew the topic. That we do not may mean that we learnt of our leadership first.
        return False
    logger.info("%s: no marker of %r: %s", partition, transaction.transactional_id, reason)
    return True


def _settled(
    shard: "TransactionShard",
    transactional_id: str,
    progress: Finishing,
    partition: TopicPartition,
    future: "Future[None]",
) -> None:
    progress.underway.discard(partition)
    if (error := _failure(future)) is not None:
        # Whether it was lost, and where, does not matter: a second marker is harmless, whoever leads by then.
        progress.last_error = error
        _try_again(shard, transactional_id, progress, error)
        return
    progress.unmarked.discard(partition)
    if not progress.unmarked:
        _schedule(shard, transactional_id, 0)


def _try_again(shard: "TransactionShard", transactional_id: str, progress: Finishing, error: BaseException) -> None:
    if progress.is_retrying:
        # A hundred partitions of a broker that died fail together: that is one failure.
        return
    progress.is_retrying = True
    delay_ms = progress.retry_ms()
    logger.warning("the end of the transaction of %r has to wait %d ms: %s", transactional_id, delay_ms, error)
    _schedule(shard, transactional_id, delay_ms)


def _failure(future: "Future[None]") -> BaseException | None:
    return StorageError("the sync was given up") if future.cancelled() else future.exception()
