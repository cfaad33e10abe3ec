"""Decodes the records of a batch one by one: for tools, tests and lookups by time, never on the produce or fetch path.

One record, all numbers zigzag varints::

    length  attributes:int8  timestamp_delta:varlong  offset_delta
    key_length  key  value_length  value  header_count  (name_length name value_length value)*

A length of -1 is null. ``length`` counts what follows it, so a record is damaged when its fields do not end exactly
where it does. The bytes are not trusted: anything wrong raises CORRUPT_MESSAGE, and no number in them allocates more
memory than the bytes themselves justify.
"""

from collections.abc import Iterator
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import Offset
from skep.records.batch import HEADER_SIZE, BatchHeader, Buffer, headers_in, read_header
from skep.records.compression import DEFAULT_MAX_SIZE, Codec, decompress

Headers = tuple[tuple[str, bytes | None], ...]

_INT64_LIMIT = 1 << 63


class Record(NamedTuple):
    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def batches_in(data: Buffer) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yields the header and the bytes of each whole batch in ``data``; see ``headers_in``."""
    view = memoryview(data)
    for position, header in headers_in(view):
        yield header, bytes(view[position : position + header.size])


def records_in(data: Buffer, *, max_size: int = DEFAULT_MAX_SIZE) -> Iterator[Record]:
    """Yields the records of all whole batches in ``data``, without those of control batches, as a consumer does."""
    for header, batch in batches_in(data):
        if not header.is_control:
            yield from iterate_records(batch, max_size=max_size)


def iterate_records(batch: bytes, *, max_size: int = DEFAULT_MAX_SIZE) -> Iterator[Record]:
    """Yields the records of one whole batch, in order; decompresses at most ``max_size`` bytes.

    Offsets may have gaps, from compaction, but increase and stay within the range of the header. In a batch with append
    time every record has the batch's ``max_timestamp``.
    """
    header = _checked_header(batch)
    if header.codec == Codec.NONE:
        data, position = batch, HEADER_SIZE
    else:
        data, position = decompress(header.codec, memoryview(batch)[HEADER_SIZE:], max_size=max_size), 0
    append_time = header.max_timestamp if header.is_append_time else None
    previous_delta = -1
    for _ in range(header.records_count):
        try:
            length, position = _read_varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise _corrupt(f"a record claims {length} bytes, {len(data) - position} are left")
            delta, record = _read_record(data, position, end, header, append_time)
        except IndexError:
            raise _corrupt("the batch ends inside a record") from None
        if not previous_delta < delta <= header.last_offset_delta:
            raise _corrupt(f"offset delta {delta} after {previous_delta}, the last is {header.last_offset_delta}")
        previous_delta = delta
        position = end
        yield record
    if position != len(data):
        raise _corrupt(f"{len(data) - position} bytes follow the last of {header.records_count} records")


def _checked_header(batch: bytes) -> BatchHeader:
    if len(batch) < HEADER_SIZE:
        raise _corrupt(f"{len(batch)} bytes are too few for a record batch")
    header = read_header(batch)
    if header.magic != 2:
        raise _corrupt(f"record batches have magic 2, this one has {header.magic}")
    if header.size != len(batch):
        raise _corrupt(f"the batch claims {header.size} bytes, there are {len(batch)}")
    if header.records_count < 0:
        raise _corrupt(f"the batch claims {header.records_count} records")
    return header


def _read_record(
    data: bytes, position: int, end: int, header: BatchHeader, append_time: int | None
) -> tuple[int, Record]:
    """Returns the offset delta and the record between ``position`` and ``end``."""
    timestamp_delta, position = _read_varlong(data, position + 1)
    offset_delta, position = _read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    header_count, position = _read_varint(data, position)
    headers: Headers = ()
    if header_count:
        headers, position = _read_headers(data, position, end, header_count)
    if position != end:
        raise _corrupt(f"the fields of a record end {position - end} bytes after the record")
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    if not -_INT64_LIMIT <= timestamp < _INT64_LIMIT:
        raise _corrupt(f"timestamp {timestamp} has more than 64 bits")
    return offset_delta, Record(Offset(header.base_offset + offset_delta), timestamp, key, value, headers)


def _read_headers(data: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    if not 0 <= count <= end - position:
        raise _corrupt(f"a record claims {count} headers, {end - position} bytes are left")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise _corrupt("a record header has no name")
        value, position = _read_bytes(data, position, end)
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position)
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise _corrupt(f"a field claims {length} bytes, {end - position} are left in its record")
    return data[position : position + length], position + length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the 32-bit zigzag number at ``position`` and where it ends. Raises IndexError when ``data`` ends
    first."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number, position = _read_varlong(data, position)
    if not -(1 << 31) <= number < 1 << 31:
        raise _corrupt("a varint has more than 32 bits")
    return number, position


def _read_varlong(data: bytes, position: int) -> tuple[int, int]:
    zigzag = shift = 0
    while (byte := data[position]) >= 0x80:
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if shift > 63:
            raise _corrupt("a varint does not end")
    zigzag |= byte << shift
    if zigzag >> 64:
        raise _corrupt("a varint has more than 64 bits")
    return (zigzag >> 1) ^ -(zigzag & 1), position + 1


def _corrupt(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, detail)
