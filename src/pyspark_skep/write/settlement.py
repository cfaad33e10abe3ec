"""Settles decided transactions that are no longer open: finds their outcome, and writes rows of aborted ones again.

A decided transaction is normally open until the driver commits it. It may have ended before: it timed out while no
driver ran, or an attempt with the same transactional id started again. Then only the log tells the outcome: the batches
of a committed transaction are in it and not among the aborted ones. The rows of an aborted one are in it too, hidden
from readers of committed records. They are read back and written again.

No single response that something does not exist is trusted: a broker that has just restarted, or has just become the
leader, may have stale metadata or a shorter log.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from pyspark_skep.write.decisions import rows_of, topics_of
from pyspark_skep.write.driver_transaction import DriverTransaction
from pyspark_skep.write.partition_access import Fetched, PartitionAccess
from pyspark_skep.write.task_transactions import TaskTransaction, WrittenRange
from pyspark_skep.write.write_errors import CommitFailed, RowsLost
from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import BatchHeader
from skep.records.record import batches_in

logger = logging.getLogger(__name__)

FETCH_BYTES = 4 << 20
_PAUSE_S = 0.05
BELIEVED_AFTER_S = 5.0
"""How long every response must say that a topic does not exist before it counts as deleted."""


class HeldBack(Exception):
    """The outcome of the transaction is not visible yet."""


def without_gone_topics(
    access: PartitionAccess, tasks: Sequence[TaskTransaction], topic_ids: Mapping[str, UUID]
) -> list[TaskTransaction]:
    """Returns the tasks without the ranges in topics that were deleted since, because those rows are deleted too."""
    gone = [topic for topic in topics_of(tasks) if _is_gone(access, topic, topic_ids.get(topic))]
    for topic in gone:
        logger.warning("topic '%s' was deleted, and with it rows that were not committed yet", topic)
    return [
        task._replace(written=tuple(written for written in task.written if written.topic not in gone)) for task in tasks
    ]


def _is_gone(access: PartitionAccess, topic: str, topic_id: UUID | None) -> bool:
    """Returns whether the topic does not exist, or another one has its name."""
    deadline = time.monotonic() + BELIEVED_AFTER_S
    while True:
        found = access.topic(topic)
        if found is not None and topic_id in (None, found.topic_id):
            return False
        if time.monotonic() > deadline:
            # The broker that responded may have been partitioned since before the topic was created.
            known = access.ids_known(topic)
            return topic_id not in known if topic_id is not None else not known
        time.sleep(_PAUSE_S)


def aborted_among(
    access: PartitionAccess, tasks: Sequence[TaskTransaction], patience_s: float
) -> list[TaskTransaction]:
    """Returns the aborted tasks. Raises RowsLost if the log was truncated or compacted and lost the outcome."""
    deadline = time.monotonic() + patience_s
    aborted, unknown = [], [task for task in tasks if task.written]
    lost: set[str] = set()
    while True:
        later: list[TaskTransaction] = []
        held_back = None
        for task in unknown:
            try:
                if not _is_committed(access, task):
                    aborted.append(task)
            except HeldBack as error:
                later.append(task)
                held_back = error
            except RowsLost:
                if task.transactional_id in lost:
                    raise
                lost.add(task.transactional_id)
                later.append(task)
        if not later:
            return aborted
        if held_back is not None and time.monotonic() > deadline:
            raise CommitFailed(f"{held_back}; start the query again when that has ended")
        unknown = later
        time.sleep(_PAUSE_S)


def _is_committed(access: PartitionAccess, task: TaskTransaction) -> bool:
    """Returns whether the task's transaction was committed, by the first partition that shows it: the outcome is the
    same in all of them. Raises HeldBack if none shows it yet, and RowsLost if none ever will."""
    held_back = None
    for written in task.written:
        try:
            fetched = access.fetch(written.topic, written.partition, written.first_offset, committed=True, max_bytes=1)
        except KafkaError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                held_back = HeldBack(f"{written.topic}-{written.partition} is reported missing, but existed before")
            elif error.code is not ErrorCode.offset_out_of_range:
                raise
            elif not _is_deleted(access, written, written.first_offset):
                held_back = HeldBack(f"the leader's log ends before {written}")
            continue
        if fetched.last_stable_offset <= written.last_offset:
            held_back = HeldBack(
                f"an open transaction holds back {written.topic}-{written.partition} at offset "
                f"{fetched.last_stable_offset}, before rows of this query"
            )
            continue
        header, _ = next(batches_in(fetched.data), (None, None))
        # Compaction may have removed the rows, and with them the record of their transaction.
        if header is None or header.base_offset != written.first_offset or not _is_of(task, header):
            continue
        return (task.producer_id, written.first_offset) not in fetched.aborted
    if held_back is not None:
        raise held_back
    raise RowsLost(
        f"whether rows of this query were committed cannot be told: {task.written[0]} are no longer in the log. "
        "Compare input and output, then start the query with a new checkpoint"
    )


def write_again(access: PartitionAccess, task: TaskTransaction, driver: DriverTransaction, patience_s: float) -> None:
    """Writes the rows of an aborted transaction in the driver's. Raises RowsLost if some are missing; abort it then."""
    logger.warning(
        "transaction %s was aborted after its epoch was decided: writing its %d rows again",
        task.transactional_id,
        rows_of([task]),
    )
    deadline = time.monotonic() + patience_s
    for written in task.written:
        _write_range_again(access, task, written, driver, deadline)


def _write_range_again(
    access: PartitionAccess, task: TaskTransaction, written: WrittenRange, driver: DriverTransaction, deadline: float
) -> None:
    count = 0
    for batch, records in _batches_of(access, task, written, deadline):
        driver.append(written.topic, written.partition, batch)
        count += records
    if count != written.rows:
        raise RowsLost(
            f"{written.rows - count} of {written.rows} rows of {written} are no longer in the log: they were "
            "written in a transaction that was aborted before the driver could commit it, and then deleted or "
            "compacted. Compare input and output, then start the query with a new checkpoint"
        )


def _is_deleted(access: PartitionAccess, written: WrittenRange, offset: int) -> bool:
    """Returns whether an offset out of range is below the log start. If not, the leader that responded is behind."""
    return offset < access.log_start_offset(written.topic, written.partition)


def _batches_of(
    access: PartitionAccess, task: TaskTransaction, written: WrittenRange, deadline: float
) -> Iterator[tuple[bytes, int]]:
    """Yields the batches that the task wrote to a partition and that still exist, each with its number of records."""
    position, times_empty = written.first_offset, 0
    while position <= written.last_offset:
        try:
            fetched = access.fetch(written.topic, written.partition, position, committed=False, max_bytes=FETCH_BYTES)
        except KafkaError as error:
            if error.code is not ErrorCode.offset_out_of_range:
                raise
            if _is_deleted(access, written, position):
                return
            fetched = Fetched(b"", 0, 0, [])
        header = None
        for header, batch in batches_in(fetched.data):
            if header.base_offset > written.last_offset:
                return
            if header.base_offset >= written.first_offset and not header.is_control and _is_of(task, header):
                yield batch, header.records_count
        if header is not None:
            position, times_empty = header.next_offset, 0
            continue
        times_empty = times_empty + 1 if fetched.high_watermark > written.last_offset else 0
        if times_empty == 2:
            return
        if time.monotonic() > deadline:
            raise CommitFailed(
                f"the leader returns records only up to offset {fetched.high_watermark}, not all of {written}"
            )
        time.sleep(_PAUSE_S)


def _is_of(task: TaskTransaction, header: BatchHeader) -> bool:
    return (header.producer_id, header.producer_epoch) == (task.producer_id, task.producer_epoch)
