"""What a task does: rows in Arrow batches to topics, under a transaction that is left open for the driver to end."""

from collections.abc import Iterator

import pyarrow as pa

from pyspark_skep.worker_heap import settle
from pyspark_skep.write.task_transactions import TaskTransaction, WrittenRange
from pyspark_skep.write.write_options import WriteOptions
from pyspark_skep.write.write_schema import WRITTEN
from skep.client.cluster_client import ClusterClient
from skep.client.produce.batch_cutter import Rows
from skep.client.produce.partitioner import RowRefused
from skep.client.produce.producer import Producer
from skep.client.produce.record_layout import RecordLayout
from skep.client.produce.row_writer import RowWriter
from skep.records.columnar import RecordColumns, RecordTooLarge


class TopicNotingProducer(Producer):
    """Remembers which topic was written last, for the error about a row that does not fit."""

    topic = ""

    def send(self, topic: str, partition: int, columns: RecordColumns, rows: Rows | None = None) -> None:
        self.topic = topic
        super().send(topic, partition, columns, rows)


def write_rows(
    cluster: ClusterClient, options: WriteOptions, transactional_id: str, batches: Iterator[pa.RecordBatch]
) -> TaskTransaction | None:
    """Returns when all rows are acknowledged. None when there were none, or the delivery needs no transaction.

    After an error the transaction is open still. The driver aborts it, with whatever else lost.
    """
    producer = TopicNotingProducer(
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
            f"it makes a batch of {error.size} bytes, topic '{producer.topic}' takes {error.limit} (max.message.bytes)",
        ) from None
    finally:
        producer.close()


def _left_open(transactional_id: str, producer: Producer) -> TaskTransaction:
    written = []
    for (topic, partition), row in sorted(producer.written.items()):
        if row.first_offset < 0 or row.last_offset < 0:
            # The broker knew a batch that was sent again, but no longer where it is. Where the rows are must be known,
            # should they have to be written again; the next attempt will find out.
            raise RuntimeError(f"the broker does not say where rows were written in {topic}-{partition}")
        written.append(WrittenRange(topic, partition, *row))
    identity = producer.identity
    return TaskTransaction(transactional_id, identity.producer_id, identity.producer_epoch, tuple(written))
