"""What the Spark rows are measured against: sources and a sink that run in Spark's Python workers as ours do.

``ReadySource`` yields Arrow batches that are there already, of the same columns: what Spark itself takes from Python.
``ConfluentSource`` is what one would write with confluent-kafka: ``consume`` many records at a time, and give Spark a
tuple for each, as its documentation shows, or one Arrow batch for each list, which is faster. ``DroppingWriter`` takes
Arrow batches and does nothing.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bench.confluent_reading import AT_ONCE, consumed
from bench.ready_rows import ready_batch
from pyspark_skep.read.row_schema import arrow_schema, row_schema
from pyspark_skep.worker_heap import settle

ROWS_PER_BATCH = 10_000


@dataclasses.dataclass(frozen=True)
class Part(InputPartition):
    """So many rows, of one partition of a topic or made up."""

    partition: int
    rows: int


class _PartsReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        parts, rows = int(self._options["parts"]), int(self._options["rows"])
        return [Part(number, rows // parts) for number in range(parts)]


class ReadyReader(_PartsReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        batch = ready_batch(ROWS_PER_BATCH, partition=partition.partition)
        left = partition.rows
        while left > 0:
            yield batch.slice(0, left) if left < batch.num_rows else batch
            left -= batch.num_rows
        settle()  # as our own source does, or the ceiling would be lower by Spark's walks through the heap


class ConfluentReader(_PartsReader):
    """Arrow batches made of what ``consume`` gives, or with the option ``tuples`` a tuple for each record."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch] | Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Part)
        topic, number = self._options["topic"], partition.partition
        lists = consumed(self._options["servers"], topic, number, partition.rows)
        return _tuples(lists, topic, number) if "tuples" in self._options else _batches(lists, topic, number)


def _batches(lists: Iterator[list[Message]], topic: str, partition: int) -> Iterator[pa.RecordBatch]:
    """The lists are short, so that they are cheap, and are put together for Spark, which wants long batches."""
    schema = arrow_schema(headers=False)
    pieces = _pieces(lists, topic, partition, schema)
    while some := list(itertools.islice(pieces, ROWS_PER_BATCH // AT_ONCE)):
        yield from pa.Table.from_batches(some, schema).combine_chunks().to_batches()


def _pieces(lists: Iterator[list[Message]], topic: str, partition: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for messages in lists:
        count = len(messages)
        times = [message.timestamp() for message in messages]
        columns = [
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.array(np.full(count, partition, np.int32)),
            pa.array([message.offset() for message in messages], pa.int64()),
            pa.array([time * 1000 for _, time in times], pa.timestamp("us", "UTC")),
            pa.array([kind - 1 for kind, _ in times], pa.int32()),  # librdkafka's 0 is: not known
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _tuples(lists: Iterator[list[Message]], topic: str, partition: int) -> Iterator[tuple[Any, ...]]:
    for messages in lists:
        for message in messages:
            kind, time = message.timestamp()
            moment = datetime.fromtimestamp(time / 1000, UTC)
            yield message.key(), message.value(), topic, partition, message.offset(), moment, kind - 1


class DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class _BenchSource(DataSource):
    def schema(self) -> StructType:
        return row_schema(headers=False)


class ReadySource(_BenchSource):
    @classmethod
    def name(cls) -> str:
        return "bench-ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DroppingWriter:
        return DroppingWriter()


class ConfluentSource(_BenchSource):
    @classmethod
    def name(cls) -> str:
        return "bench-confluent"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ConfluentReader(dict(self.options))
