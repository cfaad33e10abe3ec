"""Encodes Arrow columns into record batches, and maps keys to partitions: what a producer does, many rows at a time.

A batch is filled up to ``max_batch_bytes`` before it is compressed. If compression does not make it smaller, the batch
is sent uncompressed, which every reader accepts. A row that fits into no batch is refused by its number before its
batch is compressed, but batches with the rows before it have been yielded by then.

Columns are binary or string of either width, or what Arrow casts to that (views, dictionaries, fixed size). Headers are
lists of structs of a name and a value.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import (
    CRC_END,
    HEADER_SIZE,
    LARGEST_UNPACKED,
    LENGTH_END,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    write_header,
)
from skep.records.columnar import columnar_kernels as kernels
from skep.records.compression import Codec, compress
from skep.records.producer_identity import NO_PRODUCER, ProducerIdentity

MAX_BATCH_RECORDS = 50_000
"""Compacted topics limit the records of a batch; the broker's default is twice as many."""
_CRC_POSITION = 17
_PER_MS = {"us": 1000, "ns": 1_000_000}
_SEQUENCE_MASK = 0x7FFF_FFFF
_Column = tuple[np.ndarray, np.ndarray, np.ndarray, int]
"""Bytes, offsets, bitmap, first bit of the bitmap, as the kernels take them."""


class RecordTooLarge(Exception):
    """A row does not fit into a batch; ``topic`` is the one whose ``max.message.bytes`` is the limit, if known."""

    def __init__(self, row: int, size: int, limit: int, topic: str | None = None) -> None:
        of_topic = "" if topic is None else f" that topic '{topic}' takes (max.message.bytes)"
        super().__init__(f"row {row} makes a batch of {size} bytes, and {limit} is the most{of_topic}")
        self.row = row
        self.size = size
        self.limit = limit
        self.topic = topic

    def with_row(self, row: int) -> "RecordTooLarge":
        """Returns the same error for a row that is counted from elsewhere."""
        return RecordTooLarge(row, self.size, self.limit, self.topic)

    def __reduce__(self) -> tuple[type["RecordTooLarge"], tuple[int, int, int, str | None]]:
        # It may be pickled to another process, and Exception would pass its message to __init__.
        return RecordTooLarge, (self.row, self.size, self.limit, self.topic)


class BadRow(ValueError):
    """A row cannot become a record."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadRow"], tuple[int, str]]:
        return BadRow, (self.row, self.reason)


class RecordColumns(NamedTuple):
    key: pa.Array | None
    value: pa.Array
    headers: pa.Array | None = None
    timestamp_ms: pa.Array | np.ndarray | None = None
    """Milliseconds, or Arrow timestamps of any unit; the current time where it is null or missing."""


class EncodedBatch(NamedTuple):
    data: bytes
    count: int  # type: ignore[assignment]  # hides tuple.count
    rows: tuple[int, int]
    """First and last index (inclusive) into the given rows."""


def encode_batches(
    columns: RecordColumns,
    rows: np.ndarray | None,
    *,
    codec: Codec,
    max_batch_bytes: int,
    producer: ProducerIdentity = NO_PRODUCER,
    base_sequence: int = -1,
    max_batch_records: int = MAX_BATCH_RECORDS,
    now_ms: int | None = None,
) -> Iterator[EncodedBatch]:
    """Yields the rows with these numbers (None: all), in this order, in as few batches as hold them.

    Raises RecordTooLarge for the first row that fits into none, and BadRow for one with a header without a name or a
    timestamp out of range. Sequences continue from ``base_sequence`` by the records of each batch, if there is a
    producer id.
    """
    source = _Source(columns, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    chosen = source.chosen(rows)
    limit = min(max_batch_bytes, LARGEST_UNPACKED)
    out = np.empty(max(limit - HEADER_SIZE, 0), np.uint8)
    view = out.data
    results = np.zeros(kernels.RESULTS, np.int64)
    sequence = base_sequence if producer.producer_id >= 0 else -1
    first = 0
    while first < len(chosen):
        status = kernels.write_records(*source.arguments, chosen[: first + max_batch_records], first, out, results)
        following, end, base_timestamp, max_timestamp, lacking = results.tolist()
        count = following - first
        if count == 0 and status == 0:
            raise RecordTooLarge(int(chosen[first]), HEADER_SIZE + lacking, limit)
        if count:
            body: Buffer = view[:end]
            used = Codec.NONE
            if codec != Codec.NONE and len(packed := compress(codec, body)) < end:
                body, used = packed, codec
            header = BatchHeader(
                base_offset=Offset(0),
                batch_length=HEADER_SIZE - LENGTH_END + len(body),
                partition_leader_epoch=LeaderEpoch(-1),
                magic=2,
                crc=0,
                attributes=used | (TRANSACTIONAL_FLAG if producer.transactional else 0),
                last_offset_delta=count - 1,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=sequence,
                records_count=count,
            )
            yield EncodedBatch(_with_crc(write_header(header), body), count, (first, following - 1))
        if status < 0:
            raise BadRow(int(chosen[following]), "it has a header without a name")
        first = following
        if sequence >= 0:
            sequence = (sequence + count) & _SEQUENCE_MASK


def partitions_of_keys(key: pa.Array, partition_count: int) -> np.ndarray:
    """Returns the partition that the Java client's default partitioner gives to each key; -1 where it is null."""
    chosen = np.empty(len(key), np.int32)
    kernels.choose_partitions(_bytes_column(key, len(key), "key"), partition_count, chosen)
    return chosen


def _with_crc(header: bytes, body: Buffer) -> bytes:
    under_crc = header[CRC_END:]
    crc = crc32c(body, crc32c(under_crc))
    return b"".join((header[:_CRC_POSITION], crc.to_bytes(4, "big"), under_crc, body))


class _Source:
    """The columns as the kernels take them; their buffers keep the Arrow arrays alive."""

    def __init__(self, columns: RecordColumns, now_ms: int) -> None:
        count = self.count = len(columns.value)
        self.arguments = (
            _bytes_column(columns.key, count, "key"),
            _bytes_column(columns.value, count, "value"),
            *_header_columns(columns.headers, count),
            _times(columns.timestamp_ms, count, now_ms),
        )

    def chosen(self, rows: np.ndarray | None) -> np.ndarray:
        if rows is None:
            return np.arange(self.count, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.count):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {self.count}")
        return np.ascontiguousarray(rows, np.int64)


def _bytes_column(array: pa.Array | None, count: int, name: str) -> _Column:
    if array is None or pa.types.is_null(array.type):
        return _nulls(count)
    if len(array) != count:
        raise ValueError(f"{name} has {len(array)} rows, value has {count}")
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    is_narrow = pa.types.is_binary(kind) or pa.types.is_string(kind)
    if not (is_narrow or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        try:
            array = array.cast(pa.large_binary())
        except pa.ArrowException:
            raise TypeError(f"{name} is a column of {kind}, not of bytes or strings") from None
    valid, offsets, data = array.buffers()
    return (
        _of_buffer(data, np.uint8),
        _offsets(offsets, np.int32 if is_narrow else np.int64, array),
        _of_buffer(valid if array.null_count else None, np.uint8),
        array.offset,
    )


def _header_columns(array: pa.Array | None, count: int) -> tuple[_Column, _Column, _Column]:
    """Returns the lists, whose bytes are not used, and the names and values in them."""
    if array is None or pa.types.is_null(array.type):
        return _nulls(count), _nulls(0), _nulls(0)
    if len(array) != count:
        raise ValueError(f"headers has {len(array)} rows, value has {count}")
    kind = array.type
    is_wide = pa.types.is_large_list(kind)
    if not (is_wide or pa.types.is_list(kind)) or not pa.types.is_struct(kind.value_type) or len(kind.value_type) != 2:
        raise TypeError(f"headers is a column of {kind}, not of lists of structs of a name and a value")
    valid, offsets = array.buffers()[:2]
    lists = (
        _of_buffer(None, np.uint8),
        _offsets(offsets, np.int64 if is_wide else np.int32, array),
        _of_buffer(valid if array.null_count else None, np.uint8),
        array.offset,
    )
    # Flattening makes a field null where its struct is null.
    names, values = array.values.flatten()
    return lists, _bytes_column(names, len(names), "header name"), _bytes_column(values, len(values), "header value")


def _times(column: pa.Array | np.ndarray | None, count: int, now_ms: int) -> np.ndarray:
    if column is None:
        return np.full(count, now_ms, np.int64)
    if len(column) != count:
        raise ValueError(f"timestamp has {len(column)} rows, value has {count}")
    numbers: Any = column
    if isinstance(column, pa.Array):
        if pa.types.is_timestamp(column.type) and column.type.unit == "s":
            numbers = _in_ms(column)
        numbers = numbers.cast(pa.int64())
        per_ms = _PER_MS.get(getattr(column.type, "unit", "ms"), 1)
        # Rounded down as in Spark; Arrow's division does not.
        numbers = numbers.fill_null(now_ms * per_ms).to_numpy(zero_copy_only=False) // per_ms
    # A copy of Arrow's read-only memory: numba would compile for both kinds.
    return np.require(numbers, np.int64, ["C", "W"])


def _in_ms(seconds: pa.Array) -> pa.Array:
    try:
        return seconds.cast(pa.timestamp("ms", seconds.type.tz))
    except pa.ArrowInvalid:
        numbers = seconds.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        largest = np.iinfo(np.int64).max // 1000
        row = int(np.flatnonzero((numbers > largest) | (numbers < -largest))[0])
        raise BadRow(row, f"its timestamp, {numbers[row]} s since 1970, is out of range") from None


def _nulls(count: int) -> _Column:
    bitmap = np.zeros((count + 7) // 8, np.uint8)
    bitmap.flags.writeable = False
    return _of_buffer(None, np.uint8), np.zeros(count + 1, np.int64), bitmap, 0


def _offsets(buffer: pa.Buffer | None, width: type, array: pa.Array) -> np.ndarray:
    if len(array) == 0:
        return np.zeros(1, np.int64)  # Arrow may leave out even the one offset
    return _of_buffer(buffer, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _of_buffer(buffer: pa.Buffer | None, kind: type) -> np.ndarray:
    """Returns a read-only array: a writable one is another type for numba, which would compile again."""
    array: np.ndarray = np.zeros(0, kind) if buffer is None else np.frombuffer(buffer, kind)
    array.flags.writeable = False
    return array
