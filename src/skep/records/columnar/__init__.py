"""Converts record batches to Arrow columns and back: the names that others import.

pyarrow and numba take long to import and much memory, so callers import this package when they need it, and the broker
never does.
"""

from skep.records.columnar.arrays import record_schema
from skep.records.columnar.decoder import DEFAULT_MAX_BYTES, DEFAULT_MAX_ROWS, Decoder
from skep.records.columnar.encoder import (
    MAX_BATCH_RECORDS,
    BadRow,
    EncodedBatch,
    RecordColumns,
    RecordTooLarge,
    encode_batches,
    partitions_of_keys,
)

__all__ = [
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_ROWS",
    "MAX_BATCH_RECORDS",
    "BadRow",
    "Decoder",
    "EncodedBatch",
    "RecordColumns",
    "RecordTooLarge",
    "encode_batches",
    "partitions_of_keys",
    "record_schema",
]
