"""Rows as they come from a topic, made up, and topics filled with them: what the rows with Arrow and Spark read."""

import numpy as np
import pyarrow as pa

import skep
from bench.peers import create_topic
from skep.client.arrow.arrow_reader import table_schema

KEY_BYTES = 8
VALUE_BYTES = 100
RECORDS_AT_ONCE = 100_000
_NOW_US = 1_700_000_000_000_000


def ready_batch(rows: int, *, partition: int = 0) -> pa.RecordBatch:
    """Random keys and values, in the columns of Spark's Kafka source."""
    random = np.random.default_rng(partition)
    offsets = np.arange(rows, dtype=np.int64)
    columns = [
        _binary(random, rows, KEY_BYTES),
        _binary(random, rows, VALUE_BYTES),
        pa.array(["bench"] * rows),
        pa.array(np.full(rows, partition, np.int32)),
        pa.array(offsets),
        pa.array(_NOW_US + offsets, pa.timestamp("us", "UTC")),
        pa.array(np.zeros(rows, np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table_schema(headers=False))


def fill(servers: str, topic: str, partitions: int, records: int) -> None:
    """Makes a topic with so many records, the same number in each partition, uncompressed."""
    create_topic(servers, topic, partitions)
    each = records // partitions
    for partition in range(partitions):
        batch = ready_batch(RECORDS_AT_ONCE, partition=partition).select(["key", "value", "partition"])
        starts = range(0, each, RECORDS_AT_ONCE)
        pieces = (batch.slice(0, min(RECORDS_AT_ONCE, each - start)) for start in starts)
        skep.write_arrow(servers, topic, pieces, compression="none")


def _binary(random: np.random.Generator, rows: int, size: int) -> pa.Array:
    ends = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
    content = random.integers(0, 256, rows * size, np.uint8)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(content)], 0)
