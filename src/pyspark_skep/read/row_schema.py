"""The rows of a topic: those of Spark's own Kafka source, column by column."""

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
    """The schema that Spark compares the first batch of a task with, to the last detail."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(row_schema(headers), timezone="UTC")
