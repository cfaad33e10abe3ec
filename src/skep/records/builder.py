"""Building a record batch from records: what a producer does; used by the client, the tools and tests.

The layouts are described in ``batch.py`` (header) and ``record.py`` (records).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import (
    APPEND_TIME_FLAG,
    CONTROL_FLAG,
    HEADER_SIZE,
    LENGTH_END,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    crc_of,
    write_header,
)
from skep.records.compression import Codec, compress

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
    """One batch with these records at consecutive offsets. ValueError when there are none, or they do not fit.

    With ``append_time`` the batch is as a broker leaves it under LogAppendTime: readers see that time for each record.
    """
    body = bytearray()
    count = base_timestamp = max_timestamp = 0
    for key, value, timestamp, headers in records:
        if count == 0:
            base_timestamp = max_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        if not -_INT64_LIMIT <= timestamp - base_timestamp < _INT64_LIMIT:
            raise ValueError(f"timestamps {base_timestamp} and {timestamp} are too far apart for one batch")
        _append_record(body, timestamp - base_timestamp, count, key, value, headers)
        count += 1
    if count == 0:
        raise ValueError("a record batch has at least one record")
    packed = compress(codec, body)
    header = BatchHeader(
        base_offset=Offset(base_offset),
        batch_length=HEADER_SIZE - LENGTH_END + len(packed),
        partition_leader_epoch=LeaderEpoch(partition_leader_epoch),
        magic=2,
        crc=0,
        attributes=codec
        | (APPEND_TIME_FLAG if append_time is not None else 0)
        | (TRANSACTIONAL_FLAG if is_transactional else 0)
        | (CONTROL_FLAG if is_control else 0),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp if append_time is None else append_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=count,
    )
    # The CRC covers the header's end, so the header is written once to be summed and once with the sum.
    return write_header(header._replace(crc=crc_of(write_header(header) + packed))) + packed


def _append_record(
    body: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: HeaderPairs,
) -> None:
    record = bytearray(1)  # attributes, of which no bit has a meaning yet
    _append_varint(record, timestamp_delta)
    _append_varint(record, offset_delta)
    _append_bytes(record, key)
    _append_bytes(record, value)
    _append_varint(record, len(headers))
    for name, header_value in headers:
        _append_bytes(record, name.encode())
        _append_bytes(record, header_value)
    _append_varint(body, len(record))
    body += record


def _append_bytes(record: bytearray, data: bytes | None) -> None:
    if data is None:
        _append_varint(record, -1)
    else:
        _append_varint(record, len(data))
        record += data


def _append_varint(record: bytearray, number: int) -> None:
    zigzag = (number << 1) ^ (number >> 63)
    while zigzag >= 0x80:
        record.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    record.append(zigzag)
