"""The work of a write task: it writes Arrow batches to topics in a transaction that it leaves open for the driver."""

from collections.abc import Iterator

import pyarrow as pa

from pyspark_skep.worker_heap import settle
from pyspark_skep.write.task_transactions import TaskTransaction, WrittenRange
from pyspark_skep.write.write_options import WriteOptions
from pyspark_skep.write.write_schema import WRITTEN
from skep.client.cluster_client import ClusterClient
from skep.client.errors import RowRefused
from skep.client.produce.producer import Producer
from skep.client.produce.record_layout import RecordLayout
from skep.client.produce.row_writer import RowWriter
from skep.records.columnar import RecordTooLarge


def write_rows(
    cluster: ClusterClient, options: WriteOptions, transactional_id: str, batches: Iterator[pa.RecordBatch]
) -> TaskTransaction | None:
    """Returns when all rows are acknowledged. Returns None if there were none, or if the delivery uses no transaction.

    After an error the transaction stays open. The driver aborts it with the other attempts that lost.
    """
    producer = Producer(
        cluster,
        transactional_id=transactional_id if options.is_exactly_once else None,
        transaction_timeout_ms=options.transaction_timeout_ms,
        codec=options.codec,
        batch_bytes=options.batch_size,
        max_request_bytes=options.max_request_size,
        buffer_bytes=options.buffer_memory,
        request_timeout_s=options.request_timeout_ms / 1000,
        delivery_timeout_s=options.delivery_timeout_ms / 1000,
        client_id=options.client_id,
    )
    writer = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            batch = batch.select([name for name in batch.schema.names if name in WRITTEN])
            if writer is None:
                writer = RowWriter(cluster, producer, RecordLayout.of(batch.schema), options.topic or None)
            writer.write(batch)
        if writer is None:
            return None
        writer.flush()
        settle()
        return _left_open(transactional_id, producer) if options.is_exactly_once else None
    except RecordTooLarge as error:
        raise RowRefused(
            error.row,
            f"it makes a batch of {error.size} bytes, topic '{error.topic}' takes {error.limit} (max.message.bytes)",
        ) from None
    finally:
        producer.close()


def _left_open(transactional_id: str, producer: Producer) -> TaskTransaction:
    written = []
    for (topic, partition), row in sorted(producer.written.items()):
        if row.first_offset < 0 or row.last_offset < 0:
            # The broker recognized a retried batch as a duplicate but no longer knows its offset. The offsets are
            # needed in case the rows have to be written again, so the task fails and its next attempt finds them.
            raise RuntimeError(f"the broker did not return the offsets of rows in {topic}-{partition}")
        written.append(WrittenRange(topic, partition, *row))
    identity = producer.identity
    return TaskTransaction(transactional_id, identity.producer_id, identity.producer_epoch, tuple(written))
