"""Writes the rows of Arrow batches to their partitions, through a producer.

Batches are kept until there is enough for large record batches in every partition, then sorted by topic and partition,
in order within each, and passed to the producer. ``chunk_bytes`` bounds what is kept; the producer has a buffer of its
own.
"""

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from skep.base.errors import ErrorCode, KafkaError
from skep.base.unknown_names import no_such_topic
from skep.client.admin import topic_configs
from skep.client.cluster_client import ClusterClient
from skep.client.errors import RowRefused
from skep.client.produce.batch_cutter import Rows
from skep.client.produce.partitioner import Partitioner, rows_by_number
from skep.client.produce.producer import Producer
from skep.client.produce.record_layout import RecordLayout
from skep.client.topic_info import TopicInfo, describe_topics
from skep.records.columnar import BadRow, RecordColumns, RecordTooLarge

CHUNK_BYTES = 8 << 20
"""The size of the rows that are sorted and encoded together."""


class RowWriter:
    """Owns the rows that were not passed to the producer yet; the producer is the caller's.

    ``topic`` is for every row; with None each row has its own in the topic column. Errors have the number of the row,
    counted from the first row written.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        producer: Producer,
        layout: RecordLayout,
        topic: str | None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._layout = layout
        self._topic = topic
        self._chunk_bytes = chunk_bytes
        self._partitioners: dict[str, Partitioner] = {}
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._sent_rows = 0
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the rows. Raises RowRefused or RecordTooLarge for one that cannot be written; those before it may be
        written."""
        self.rows += batch.num_rows
        for plain in self._layout.plain(batch):
            for piece in _pieces(plain, self._chunk_bytes):
                self._kept.append(piece)
                self._kept_bytes += piece.nbytes
                if self._kept_bytes >= self._chunk_bytes:
                    self._send_kept()

    def flush(self) -> None:
        """Returns when every row is acknowledged."""
        self._send_kept()
        self._producer.flush()

    def _send_kept(self) -> None:
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for batch in _joined(kept):
            try:
                self._send(batch)
            except (RowRefused, BadRow) as error:
                raise RowRefused(self._sent_rows + error.row, error.reason) from None
            except RecordTooLarge as error:
                raise error.with_row(self._sent_rows + error.row) from None
            self._sent_rows += batch.num_rows

    def _send(self, batch: pa.RecordBatch) -> None:
        columns = self._layout.records(batch)
        given = None if self._layout.partition is None else batch.column(self._layout.partition)
        row_bytes = batch.nbytes / max(batch.num_rows, 1)
        for topic, rows in self._by_topic(batch):
            if rows is None:
                key, here = columns.key, given
            else:
                key = None if columns.key is None else columns.key.take(rows)
                here = None if given is None else given.take(rows)
            count = batch.num_rows if rows is None else len(rows)
            try:
                partitions = self._partitioner(topic).choose(key, here, count, row_bytes)
            except RowRefused as error:
                raise error.with_row(error.row if rows is None else int(rows[error.row])) from None
            groups = [
                (partition, chosen if rows is None else rows[chosen])
                for partition, chosen in rows_by_number(partitions)
            ]
            self._send_groups(topic, columns, groups)

    def _send_groups(self, topic: str, columns: RecordColumns, groups: list[tuple[int, Rows]]) -> None:
        if len(groups) == 1 and len(groups[0][1]) == len(columns.value):
            self._producer.send(topic, groups[0][0], columns)
            return
        # Sorted once here and not by the encoder, which would walk the whole chunk for every partition: with 64
        # partitions that is less than half the work.
        order = pa.array(np.concatenate([rows for _, rows in groups]))
        together = RecordColumns(*(None if column is None else column.take(order) for column in columns))
        start = 0
        for partition, rows in groups:
            part = (None if column is None else column[start : start + len(rows)] for column in together)
            try:
                self._producer.send(topic, partition, RecordColumns(*part))
            except RecordTooLarge as error:
                raise error.with_row(int(rows[error.row])) from None
            except BadRow as error:
                raise RowRefused(int(rows[error.row]), error.reason) from None
            start += len(rows)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Rows | None]]:
        """Yields each topic with its rows; None for all of them."""
        if self._topic is not None:
            yield self._topic, None
            return
        if self._layout.topic is None:
            raise RowRefused(0, "no topic is given, and there is no topic column")
        column = batch.column(self._layout.topic)
        if column.null_count:
            raise RowRefused(int(np.flatnonzero(np.asarray(column.is_null()))[0]), "it has no topic")
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], None
            return
        for number, rows in rows_by_number(np.asarray(encoded.indices).astype(np.int32)):
            yield names[number], rows

    def _partitioner(self, topic: str) -> Partitioner:
        found = self._partitioners.get(topic)
        if found is None:
            info = self._described(topic)
            limit = topic_configs(self._cluster, topic).get("max.message.bytes")
            if limit is not None:
                self._producer.set_limit(topic, int(limit))
            # At random, or the first partition would get all rows of writers that write few at a time.
            first_turn = random.randrange(info.partition_count)
            found = self._partitioners[topic] = Partitioner(topic, info.partition_count, first_turn)
        return found

    def _described(self, topic: str) -> TopicInfo:
        try:
            return describe_topics(self._cluster, [topic])[topic]
        except KafkaError as error:
            # A topic of the caller is raised as it is; one that a row names is a fault of the row.
            if self._topic is not None or error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            raise RowRefused(0, f"{no_such_topic(topic)}: create it first") from None


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _pieces(batch: pa.RecordBatch, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields the batch or, if it is large, slices of it; nothing is copied."""
    if batch.nbytes <= 2 * chunk_bytes or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half), chunk_bytes)
    yield from _pieces(batch.slice(half), chunk_bytes)
