"""One Fetch of one partition: the request, and its answer read by hand, versions 4 to 18.

kio would copy the records out of the answer; here they are a view into the buffer that the socket was read into. Only
what a reader of one partition needs is read, of answers that have what was asked for; fields of later times come as
tagged fields, which are passed over.
"""

import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from skep.base.errors import DecodeError, ErrorCode
from skep.wire.apis import FETCH
from skep.wire.codec import Body
from skep.wire.fetch.fetch_response import HAS_LOG_START_OFFSET, HAS_PREFERRED_READ_REPLICA, HAS_SESSION, HAS_TOPIC_ID
from skep.wire.primitives import read_uvarint

FETCH_BY_NAME = FETCH._replace(newest=HAS_TOPIC_ID - 1)
READ_COMMITTED = 1
MAX_WAIT = timedelta(milliseconds=500)
"""How long the broker waits for something to come when there is nothing."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_SESSION = struct.Struct(">ihi")
_V4 = struct.Struct(">ihqq")
_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_BATCH_BEGIN = struct.Struct(">qi11xi")
"""Base offset, length, last offset delta."""
_LENGTH_END = 12
_LARGEST_OFFSET = (1 << 63) - 1
_ID_SIZE = 16


class Fetched(NamedTuple):
    """A partition's piece of an answer; ``records`` lies in the buffer of the answer."""

    error_code: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    aborted: Sequence[tuple[int, int]] = ()
    records: memoryview = memoryview(b"")


def fetch_body(
    topic: str, topic_id: UUID, partition: int, offset: int, *, max_bytes: int, committed: bool, max_wait: timedelta
) -> Body:
    """A request without a session, for all versions: with the name or the id, as the version has it.

    The first batch comes also when it is larger than ``max_bytes``, so no value is too large to be read.
    """
    wanted = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": READ_COMMITTED if committed else 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [wanted]}],
    }


def read_fetch_answer(version: int, frame: memoryview) -> Fetched | None:
    """The one partition in the answer, header included; None when there is none, as from a broker that throttles.

    DecodeError when the bytes are not such an answer.
    """
    try:
        return _read(version, frame)
    except struct.error:
        raise DecodeError(f"Fetch v{version}: the answer ends too early") from None


def _read(version: int, frame: memoryview) -> Fetched | None:
    is_flexible = FETCH.is_flexible(version)
    position = _INT32.size
    if is_flexible:
        position = _after_tags(frame, position)
    if version >= HAS_SESSION:
        _, code, _ = _SESSION.unpack_from(frame, position)
        position += _SESSION.size
        if code:
            return Fetched(_error_code(code))
    else:
        position += _INT32.size
    count, position = _count(frame, position, is_flexible)
    if count <= 0:
        return None
    if version >= HAS_TOPIC_ID:
        position += _ID_SIZE
    elif is_flexible:
        size, position = read_uvarint(frame, position)
        position += size - 1
    else:
        position += _INT16.size + _INT16.unpack_from(frame, position)[0]
    count, position = _count(frame, position, is_flexible)
    return _read_partition(version, frame, position) if count > 0 else None


def _read_partition(version: int, frame: memoryview, position: int) -> Fetched:
    is_flexible = FETCH.is_flexible(version)
    if version >= HAS_LOG_START_OFFSET:
        _, code, high_watermark, last_stable_offset, _ = _V5.unpack_from(frame, position)
        position += _V5.size
    else:
        _, code, high_watermark, last_stable_offset = _V4.unpack_from(frame, position)
        position += _V4.size
    count, position = _count(frame, position, is_flexible)
    aborted = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(frame, position))
        position += _ABORTED.size
        if is_flexible:
            position = _after_tags(frame, position)
    if version >= HAS_PREFERRED_READ_REPLICA:
        position += _INT32.size
    size, position = _count(frame, position, is_flexible)
    if size > len(frame) - position:
        raise DecodeError(f"Fetch v{version}: {size} bytes of records, {len(frame) - position} are there")
    records = frame[position : position + max(0, size)]
    return Fetched(_error_code(code), high_watermark, last_stable_offset, aborted, records)


def _count(frame: memoryview, position: int, is_flexible: bool) -> tuple[int, int]:
    """A length as this kind of version writes it, -1 for null, and the position after it."""
    if is_flexible:
        number, position = read_uvarint(frame, position)
        return number - 1, position
    return _INT32.unpack_from(frame, position)[0], position + _INT32.size


def _after_tags(frame: memoryview, position: int) -> int:
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        _, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
    return position


def _error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def offset_after(records: memoryview, offset: int) -> int:
    """Where to fetch on after these batches; ``offset`` itself when not even one is whole.

    Looks at nothing but lengths and offsets: whether the batches are right is the decoder's question, and what is
    damaged ends the walk.
    """
    position, size = 0, len(records)
    unpack = _BATCH_BEGIN.unpack_from
    while size - position >= _BATCH_BEGIN.size:
        base_offset, length, last_delta = unpack(records, position)
        position += _LENGTH_END + length
        if position > size or length <= 0 or last_delta < 0 or base_offset + last_delta >= _LARGEST_OFFSET:
            break
        following = base_offset + last_delta + 1
        if following > offset:
            offset = following
    return offset
