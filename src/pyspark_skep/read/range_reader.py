"""What a task does: a range of offsets of one partition as Arrow batches, in the columns of Spark's rows."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_skep.read.offset_ranges import OffsetRange
from pyspark_skep.read.read_options import ReadOptions
from pyspark_skep.read.row_schema import arrow_schema
from pyspark_skep.worker_heap import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from skep.client.errors import OffsetOutOfRange
    from skep.client.fetch.partition_reader import PartitionReader

ROWS_PER_BATCH = 10_000
_log = logging.getLogger(__name__)


class DataLoss(Exception):
    """Records that should have been read are gone, and ``failOnDataLoss`` is true."""


def report_loss(text: str, *, fail: bool) -> None:
    """DataLoss, or a warning when the query is to go on without the records."""
    if fail:
        raise DataLoss(f"{text}. Records may be lost; with failOnDataLoss=false the query goes on with what is there")
    _log.warning("%s. Records may be lost; the query goes on, because failOnDataLoss is false", text)


@dataclasses.dataclass(frozen=True)
class RangePartition(InputPartition):
    """A range of offsets, the work of one task."""

    range: OffsetRange


def read_range(options: ReadOptions, offsets: OffsetRange) -> "Iterator[pa.RecordBatch]":
    """The records of the range. Where its beginning is gone meanwhile: DataLoss, or from where the log begins."""
    from skep.client.errors import OffsetOutOfRange, TopicGone, TopicRecreated

    while offsets.size > 0:
        reader = _open(options, offsets)
        try:
            yield from rows_of(reader, offsets, options.include_headers)
            settle()
            return
        except (TopicGone, TopicRecreated) as error:
            report_loss(
                f"{error}; offsets {reader.position} to {offsets.end} were to be read", fail=options.fail_on_data_loss
            )
            return
        except OffsetOutOfRange as error:
            if options.archive and error.wanted < error.log_start:
                archived = _from_archive(options, offsets, error)
                if archived is not None:
                    yield from archived
                    offsets = offsets._replace(start=min(error.log_start, offsets.end))
                    continue
            report_loss(f"{error}; {offsets.end} was to be read up to", fail=options.fail_on_data_loss)
            if not error.wanted < error.log_start < offsets.end:
                return
            offsets = offsets._replace(start=error.log_start)


def _from_archive(
    options: ReadOptions, offsets: OffsetRange, error: "OffsetOutOfRange"
) -> "Iterator[pa.RecordBatch] | None":
    """What the log lost since the query was planned, if the archive has it."""
    from pyspark_skep.read.archives import read_gone

    return read_gone(options, offsets._replace(start=error.wanted, end=min(error.log_start, offsets.end)))


def _open(options: ReadOptions, offsets: OffsetRange) -> "PartitionReader":
    from skep.client.fetch.partition_reader import PartitionReader
    from skep.client.shared import shared_cluster

    # One for each process: Spark uses a Python worker for task after task.
    cluster = shared_cluster(
        options.bootstrap_servers, client_id=options.client_id, timeout_s=options.request_timeout_ms / 1000
    )
    return PartitionReader(
        cluster,
        offsets.topic,
        offsets.topic_id,
        offsets.partition,
        start=offsets.start,
        end=offsets.end,
        committed=options.committed,
        headers=options.include_headers,
        fetch_max_bytes=options.fetch_bytes,
        max_rows=ROWS_PER_BATCH,
        timeout_s=options.poll_timeout_ms / 1000,
    )


def rows_of(batches: "Iterable[pa.RecordBatch]", offsets: OffsetRange, headers: bool) -> "Iterator[pa.RecordBatch]":
    """The batches with topic and partition added: slices of two columns that are made once."""
    import numpy as np
    import pyarrow as pa

    schema = arrow_schema(headers)
    length = 0
    for batch in batches:
        count = batch.num_rows
        if count > length:
            length = max(count, ROWS_PER_BATCH)
            topics = pa.repeat(pa.scalar(offsets.topic, pa.string()), length)
            partitions = pa.array(np.full(length, offsets.partition, np.int32))
        key, value, *rest = batch.columns
        columns = [key, value, topics.slice(0, count), partitions.slice(0, count), *rest]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
