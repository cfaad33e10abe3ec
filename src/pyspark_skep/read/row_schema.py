"""The rows of a topic. They have the columns of Spark's own Kafka source."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_skep.read.offset_ranges import OffsetRange

ROWS_PER_BATCH = 10_000

_FIELDS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def row_schema(headers: bool) -> StructType:
    return StructType([*_FIELDS, StructField("headers", ArrayType(_HEADER))] if headers else list(_FIELDS))


@cache
def arrow_schema(headers: bool) -> "pa.Schema":
    """Returns the Arrow schema of the rows. Spark requires the first batch of a task to match it exactly."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(row_schema(headers), timezone="UTC")


def rows_of(batches: "Iterable[pa.RecordBatch]", offsets: "OffsetRange", headers: bool) -> "Iterator[pa.RecordBatch]":
    """Yields the batches with the columns topic and partition added: slices of two columns that are built once."""
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
