"""Builds a record batch from records, as a producer does; used by the client, the coordinators, the tools and tests.

The layouts are described in ``batch.py`` (header) and ``record.py`` (records).
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from skep.records.batch import (
    APPEND_TIME_FLAG,
    CONTROL_FLAG,
    HEADER_SIZE,
    LENGTH_END,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
)
from skep.records.compression import Codec, compress

_BEFORE_CRC = struct.Struct(">qiibI")
_UNDER_CRC = struct.Struct(">hiqqqhii")
_INT64_LIMIT = 1 << 63

HeaderPairs = Sequence[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = NO_TIMESTAMP
    headers: HeaderPairs = ()


def build_batch(
    records: Iterable[NewRecord | tuple[bytes | None, bytes | None, int, HeaderPairs]],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    append_time: int | None = None,
) -> bytes:
    """Returns one batch with these records at consecutive offsets. Raises ValueError when there are none.

    Also when their timestamps are too far apart. With ``append_time`` the batch is as a broker writes it under
    LogAppendTime: readers get that time for each record.
    """
    builder = BatchBuilder()
    builder.add(records)
    return builder.batch(
        base_offset=base_offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        partition_leader_epoch=partition_leader_epoch,
        is_transactional=is_transactional,
        is_control=is_control,
        append_time=append_time,
    )


class BatchBuilder:
    """Builds a batch in several steps, for callers with too many records to encode them at once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._count = self._base_timestamp = self._max_timestamp = 0

    def add(self, records: Iterable[NewRecord | tuple[bytes | None, bytes | None, int, HeaderPairs]]) -> None:
        """Appends these records. Raises ValueError when the timestamps are too far apart."""
        parts, count = self._parts, self._count
        base_timestamp, max_timestamp = self._base_timestamp, self._max_timestamp
        for key, value, timestamp, headers in records:
            if count == 0:
                base_timestamp = max_timestamp = timestamp
            if timestamp > max_timestamp:
                max_timestamp = timestamp
            if not -_INT64_LIMIT <= timestamp - base_timestamp < _INT64_LIMIT:
                raise ValueError(f"timestamps {base_timestamp} and {timestamp} are too far apart for one batch")
            record = _record(timestamp - base_timestamp, count, key, value, headers)
            parts.append(_varint(len(record)))
            parts.append(record)
            count += 1
        self._count, self._base_timestamp, self._max_timestamp = count, base_timestamp, max_timestamp

    def batch(
        self,
        *,
        base_offset: int = 0,
        codec: int = Codec.NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        partition_leader_epoch: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
        append_time: int | None = None,
    ) -> bytes:
        """Returns the batch as ``build_batch`` does."""
        if self._count == 0:
            raise ValueError("a record batch has at least one record")
        body = b"".join(self._parts)
        if codec != Codec.NONE:
            body = compress(codec, body)
        under_crc = _UNDER_CRC.pack(
            codec
            | (APPEND_TIME_FLAG if append_time is not None else 0)
            | (TRANSACTIONAL_FLAG if is_transactional else 0)
            | (CONTROL_FLAG if is_control else 0),
            self._count - 1,
            self._base_timestamp,
            self._max_timestamp if append_time is None else append_time,
            producer_id,
            producer_epoch,
            base_sequence,
            self._count,
        )
        crc = crc32c(body, crc32c(under_crc))
        length = HEADER_SIZE - LENGTH_END + len(body)
        return _BEFORE_CRC.pack(base_offset, length, partition_leader_epoch, 2, crc) + under_crc + body


def _record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: HeaderPairs
) -> bytes:
    """Returns one record without its length."""
    if timestamp_delta == 0 and not headers and key is not None and value is not None:
        # The fast path for most records of coordinators.
        return b"".join(
            (b"\0\0", _varint(offset_delta), _varint(len(key)), key, _varint(len(value)), value, _NO_HEADERS)
        )
    # The first byte is the attributes, of which no bit is used yet.
    parts = [b"\0", _varint(timestamp_delta), _varint(offset_delta)]
    for data in (key, value):
        if data is None:
            parts.append(_NULL)
        else:
            parts.append(_varint(len(data)))
            parts.append(data)
    parts.append(_varint(len(headers)))
    for name, header_value in headers:
        encoded = name.encode()
        parts += (_varint(len(encoded)), encoded)
        parts += (_NULL,) if header_value is None else (_varint(len(header_value)), header_value)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_ONE_BYTE = tuple(bytes((byte,)) for byte in range(0x80))
_NULL = _ONE_BYTE[1]
_NO_HEADERS = _ONE_BYTE[0]
