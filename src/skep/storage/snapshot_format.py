"""The bytes of a ``.snapshot``: Kafka's format, one row after the other; see ``docs/ON-DISK.md``."""

import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ROW = struct.Struct(">qhiqiqiq")

NO_SEQUENCE = -1
NO_OFFSET = -1
"""The last of a producer that has no batch in its epoch, only a marker; and the first of no transaction."""
NO_COORDINATOR_EPOCH = -1


pack_row = _ROW.pack
"""One batch of a producer as bytes: producer id, epoch, last sequence, last offset, offset delta, timestamp,
coordinator epoch, first offset of the transaction. The last two are the producer's, the same in all its rows."""


def encode_snapshot(rows: Sequence[bytes]) -> bytes:
    """Of rows that ``pack_row`` has made."""
    body = _COUNT.pack(len(rows)) + b"".join(rows)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> Iterator[tuple[int, ...]]:
    """The fields of each row, in the order of ``pack_row``. ValueError when the snapshot is damaged."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise ValueError("the snapshot is cut off")
    version, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if version != _VERSION or crc32c(body) != crc:
        raise ValueError("the snapshot's version or CRC is wrong")
    rows = body[_COUNT.size :]
    if len(rows) != _COUNT.unpack_from(body)[0] * _ROW.size:
        raise ValueError("the snapshot's count is wrong")
    return _ROW.iter_unpack(rows)
