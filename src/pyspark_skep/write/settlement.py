"""Decided transactions that are no longer open: what became of them, and their rows written again if they were aborted.

A decided transaction is normally open until the driver commits it. It may be gone by then: it timed out while no driver
ran, or an attempt with the same transactional id began anew. Then the log knows, and nobody else: a committed
transaction is in it and not among the aborted ones. The rows of an aborted one are in it too, where no reader that asks
for committed rows sees them; they are read back and written again.

No single answer is believed that says that something is not there: a broker that has just come back, or has just become
the leader, may be behind in what it knows.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from pyspark_skep.write.decisions import rows_of, topics_of
from pyspark_skep.write.driver_transaction import DriverTransaction
from pyspark_skep.write.partition_access import Fetched, PartitionAccess
from pyspark_skep.write.raw_batches import whole_batches
from pyspark_skep.write.task_transactions import TaskTransaction, WrittenRange
from pyspark_skep.write.write_errors import CommitFailed, RowsLost
from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import BatchHeader

logger = logging.getLogger(__name__)

FETCH_BYTES = 4 << 20
_PAUSE_S = 0.05
BELIEVED_AFTER_S = 5.0
"""How long every answer has to be that a topic is not there."""


class HeldBack(Exception):
    """What became of the transaction is not to be seen yet."""


def without_gone_topics(
    access: PartitionAccess, tasks: Sequence[TaskTransaction], topic_ids: Mapping[str, UUID]
) -> list[TaskTransaction]:
    """The tasks without what they wrote to topics that were deleted since: those rows went with their topics."""
    gone = [topic for topic in topics_of(tasks) if _is_gone(access, topic, topic_ids.get(topic))]
    for topic in gone:
        logger.warning("topic '%s' was deleted, and with it rows that were to be committed", topic)
    return [
        task._replace(written=tuple(written for written in task.written if written.topic not in gone)) for task in tasks
    ]


def _is_gone(access: PartitionAccess, topic: str, topic_id: UUID | None) -> bool:
    """Whether there is no such topic, or another one of that name."""
    deadline = time.monotonic() + BELIEVED_AFTER_S
    while True:
        found = access.topic(topic)
        if found is not None and topic_id in (None, found.topic_id):
            return False
        if time.monotonic() > deadline:
            # The one that was asked may have been cut off since before the topic was made.
            known = access.ids_known(topic)
            return topic_id not in known if topic_id is not None else not known
        time.sleep(_PAUSE_S)


def aborted_among(
    access: PartitionAccess, tasks: Sequence[TaskTransaction], patience_s: float
) -> list[TaskTransaction]:
    """Those whose rows have to be written again. RowsLost when the log cannot tell, for it was cut off or compacted."""
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
            raise CommitFailed(f"{held_back}; start the query again when that is over")
        unknown = later
        time.sleep(_PAUSE_S)


def _is_committed(access: PartitionAccess, task: TaskTransaction) -> bool:
    """Any one of its partitions tells: a transaction ends in the same way everywhere."""
    held_back = None
    for written in task.written:
        try:
            fetched = access.fetch(written.topic, written.partition, written.first_offset, committed=True, max_bytes=1)
        except KafkaError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                held_back = HeldBack(f"{written.topic}-{written.partition} is said not to be there, and was before")
            elif error.code is not ErrorCode.offset_out_of_range:
                raise
            elif not _is_deleted(access, written, written.first_offset):
                held_back = HeldBack(f"the leader's log ends before offsets of {written}")
            continue
        if fetched.last_stable_offset <= written.last_offset:
            held_back = HeldBack(
                f"an open transaction holds back {written.topic}-{written.partition} at offset "
                f"{fetched.last_stable_offset}, before rows of this query"
            )
            continue
        header, _ = next(whole_batches(fetched.data), (None, None))
        # Compaction may have taken the rows out, and then also what is known of their transaction.
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
    """The rows of an aborted transaction, into the driver's. RowsLost when not all are there; abort it then."""
    logger.warning(
        "%s was aborted after it was decided: its %d rows are written again", task.transactional_id, rows_of([task])
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
    """Of an offset that is out of range: whether the log begins after it. Else the leader that was asked is behind."""
    return offset < access.log_start_offset(written.topic, written.partition)


def _batches_of(
    access: PartitionAccess, task: TaskTransaction, written: WrittenRange, deadline: float
) -> Iterator[tuple[memoryview, int]]:
    """The batches that the task wrote to a partition, each with its number of records, as far as they are there."""
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
        for header, batch in whole_batches(fetched.data):
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
            raise CommitFailed(f"the leader has no more than {fetched.high_watermark} offsets to give of {written}")
        time.sleep(_PAUSE_S)


def _is_of(task: TaskTransaction, header: BatchHeader) -> bool:
    return (header.producer_id, header.producer_epoch) == (task.producer_id, task.producer_epoch)
