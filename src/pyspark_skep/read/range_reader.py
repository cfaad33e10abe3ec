"""The work of a read task: returns a range of offsets of one partition as Arrow batches of Spark's rows."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_skep.read.data_loss import report_loss
from pyspark_skep.read.offset_ranges import OffsetRange
from pyspark_skep.read.read_options import ReadOptions
from pyspark_skep.read.row_schema import ROWS_PER_BATCH, rows_of
from pyspark_skep.worker_heap import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from skep.client.errors import OffsetOutOfRange
    from skep.client.fetch.partition_reader import PartitionReader


@dataclasses.dataclass(frozen=True)
class RangePartition(InputPartition):
    """A range of offsets, the work of one task."""

    range: OffsetRange


def read_range(options: ReadOptions, offsets: OffsetRange) -> "Iterator[pa.RecordBatch]":
    """Yields the records of the range.

    When the log no longer has the start of the range, the archive is read instead if it has all of that part.
    Otherwise this raises DataLoss or, with ``failOnDataLoss=false``, continues where the log starts.
    """
    from skep.client.errors import OffsetOutOfRange, TopicGone, TopicRecreated

    while offsets.size > 0:
        reader = _open(options, offsets)
        try:
            yield from rows_of(reader, offsets, options.include_headers)
            settle()
            return
        except (TopicGone, TopicRecreated) as error:
            report_loss(
                f"{error}; offsets {reader.position} to {offsets.end - 1} were not read", fail=options.fail_on_data_loss
            )
            return
        except OffsetOutOfRange as error:
            if options.archive and error.wanted < error.log_start:
                archived = _from_archive(options, offsets, error)
                if archived is not None:
                    yield from archived
                    offsets = offsets._replace(start=min(error.log_start, offsets.end))
                    continue
            report_loss(f"{error}; the task reads up to offset {offsets.end}", fail=options.fail_on_data_loss)
            if not error.wanted < error.log_start < offsets.end:
                return
            offsets = offsets._replace(start=error.log_start)


def _from_archive(
    options: ReadOptions, offsets: OffsetRange, error: "OffsetOutOfRange"
) -> "Iterator[pa.RecordBatch] | None":
    """Returns the records that the log lost since the query was planned, or None if the archive lacks some of them."""
    from pyspark_skep.read.archives import read_gone

    return read_gone(options, offsets._replace(start=error.wanted, end=min(error.log_start, offsets.end)))


def _open(options: ReadOptions, offsets: OffsetRange) -> "PartitionReader":
    from skep.client.cluster_client import shared_cluster
    from skep.client.fetch.partition_reader import PartitionReader

    # One client for each process: Spark reuses a Python worker for many tasks.
    cluster = shared_cluster(
        options.bootstrap_servers,
        client_id=options.client_id,
        timeout_s=options.request_timeout_ms / 1000,
        security=options.security,
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
