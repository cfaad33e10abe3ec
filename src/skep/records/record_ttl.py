"""The time to live of single records: the header ``ttl-ms``, for share groups that look for it.

Its value is text: how many milliseconds after its timestamp the record is worth delivering. Values that are no such
number are ignored, as is all but the first of several.
"""

from skep.records.batch import HEADER_SIZE, Buffer, read_header
from skep.records.compression import Codec, decompress
from skep.records.record import iterate_records

HEADER = "ttl-ms"
_NAME = HEADER.encode()
_MAX_DIGITS = 15
"""Enough for 30,000 years."""


def expiry_times(batch: Buffer, *, max_size: int) -> list[tuple[int, int]]:
    """Returns the offset of each record with a time to live, and the time at which it ends, in ms. Raises KafkaError
    when the batch is damaged, or decompresses to more than ``max_size`` bytes."""
    header = read_header(batch)
    if header.is_control:
        return []
    data = memoryview(batch)[HEADER_SIZE:]
    # Decoding takes ten times as long as looking for the name, which few batches have.
    if _NAME not in (bytes(data) if header.codec == Codec.NONE else decompress(header.codec, data, max_size=max_size)):
        return []
    found = []
    for record in iterate_records(bytes(batch), max_size=max_size):
        ttl_ms = next((_number(value) for name, value in record.headers if name == HEADER), None)
        if ttl_ms is not None and record.timestamp >= 0:
            found.append((int(record.offset), record.timestamp + ttl_ms))
    return found


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) <= _MAX_DIGITS else None
