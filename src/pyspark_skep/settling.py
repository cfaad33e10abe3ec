"""Decided transactions that are no longer open: what became of them, and their rows written again if they were aborted.

A decided transaction is normally open until the driver commits it. It may be gone by then: it timed out while no driver
ran, or an attempt with the same transactional id began anew. Then the log knows, and nobody else: a committed
transaction is in it and not among the aborted ones. The rows of an aborted one are in it too, where no reader that asks
for committed rows sees them; they are read back and written again.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import chain

from pyspark_skep.driver_transaction import DriverTransaction
from pyspark_skep.partition_access import PartitionAccess
from pyspark_skep.raw_batches import whole_batches
from pyspark_skep.task_transactions import TaskTransaction, WrittenRange
from pyspark_skep.write_errors import CommitFailed, RowsLost
from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import BatchHeader

logger = logging.getLogger(__name__)

FETCH_BYTES = 4 << 20
_PAUSE_S = 0.05
_GONE = (ErrorCode.unknown_topic_or_partition, ErrorCode.offset_out_of_range)


class HeldBack(Exception):
    """What became of the transaction is not to be seen yet."""


def aborted_among(
    access: PartitionAccess, tasks: Sequence[TaskTransaction], patience_s: float
) -> list[TaskTransaction]:
    """Those whose rows have to be written again. RowsLost when the log cannot tell, for it was cut off or compacted."""
    deadline = time.monotonic() + patience_s
    aborted, unknown = [], list(tasks)
    while True:
        held_back = []
        for task in unknown:
            try:
                if not _is_committed(access, task):
                    aborted.append(task)
            except HeldBack as error:
                held_back.append((task, error))
        if not held_back:
            return aborted
        if time.monotonic() > deadline:
            raise CommitFailed(f"{held_back[0][1]}; start the query again when that transaction has ended")
        unknown = [task for task, _ in held_back]
        time.sleep(_PAUSE_S)


def _is_committed(access: PartitionAccess, task: TaskTransaction) -> bool:
    """Any one of its partitions tells: a transaction ends in the same way everywhere."""
    held_back = None
    gone = 0
    for written in task.written:
        try:
            fetched = access.fetch(written.topic, written.partition, written.first_offset, committed=True, max_bytes=1)
        except KafkaError as error:
            if error.code not in _GONE:
                raise
            gone += error.code is ErrorCode.unknown_topic_or_partition
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
    if gone == len(task.written):
        logger.warning("the topics %s are gone, and the rows written to them", ", ".join(sorted(task.topics)))
        return True
    raise RowsLost(
        f"whether rows of this query were committed cannot be told: {task.written[0]} are no longer in the log. "
        "Compare input and output, then start the query with a new checkpoint"
    )


def write_again(access: PartitionAccess, task: TaskTransaction, driver: DriverTransaction) -> None:
    """The rows of an aborted transaction, into the driver's. RowsLost when not all are there; abort it then."""
    rows = sum(written.rows for written in task.written)
    logger.warning("%s was aborted after it was decided: its %d rows are written again", task.transactional_id, rows)
    for written in task.written:
        _write_range_again(access, task, written, driver)


def _write_range_again(
    access: PartitionAccess, task: TaskTransaction, written: WrittenRange, driver: DriverTransaction
) -> None:
    count = 0
    batches = _batches_of(access, task, written)
    try:
        first = next(batches, None)
    except KafkaError as error:
        if error.code not in _GONE:
            raise
        if error.code is ErrorCode.unknown_topic_or_partition:
            logger.warning("topic %s is gone, and the rows written to it", written.topic)
            return
        first = None
    for batch, records in chain([] if first is None else [first], batches):
        driver.append(written.topic, written.partition, batch)
        count += records
    if count != written.rows:
        raise RowsLost(
            f"{written.rows - count} of {written.rows} rows of {written} are no longer in the log: they were "
            "written in a transaction that was aborted before the driver could commit it, and then deleted or "
            "compacted. Compare input and output, then start the query with a new checkpoint"
        )


def _batches_of(
    access: PartitionAccess, task: TaskTransaction, written: WrittenRange
) -> Iterator[tuple[memoryview, int]]:
    """The batches that the task wrote to a partition, each with its number of records, as far as they are there."""
    position = written.first_offset
    while position <= written.last_offset:
        fetched = access.fetch(written.topic, written.partition, position, committed=False, max_bytes=FETCH_BYTES)
        header = None
        for header, batch in whole_batches(fetched.data):
            if header.base_offset > written.last_offset:
                return
            if header.base_offset >= written.first_offset and not header.is_control and _is_of(task, header):
                yield batch, header.records_count
        if header is None:
            return
        position = header.next_offset


def _is_of(task: TaskTransaction, header: BatchHeader) -> bool:
    return (header.producer_id, header.producer_epoch) == (task.producer_id, task.producer_epoch)
