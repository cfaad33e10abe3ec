"""A hand-written reader of the Fetch response, versions 4 to 18, for followers and for readers.

kio would copy the records out of the response; here they are views into the frame. The whole response is read before
anything is returned, so a follower never acts on half of a response that turns out to be damaged.

Left out: the preferred read replica and the endpoints of other brokers.
"""

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from skep.base.errors import DecodeError, ErrorCode
from skep.wire.apis import FETCH
from skep.wire.fetch.fetch_response import HAS_LOG_START_OFFSET, HAS_PREFERRED_READ_REPLICA, HAS_SESSION, HAS_TOPIC_ID
from skep.wire.primitives import INT32, read_uvarint, skip_tagged_fields

_SESSION = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_EPOCH_END_OFFSET = struct.Struct(">iq")
_LEADER_AND_EPOCH = struct.Struct(">ii")
_ABORTED = struct.Struct(">qq")
_INT16 = struct.Struct(">h")
_ID_SIZE = 16
_NO_ID = UUID(int=0)
_DIVERGING_EPOCH_TAG = 0
_CURRENT_LEADER_TAG = 1


class FetchResponsePartition(NamedTuple):
    """One partition of a response; ``records`` is a view into the frame.

    ``topic_id`` is 0 before version 13. Those versions have the name, which only a reader of several topics would need.
    """

    topic_id: UUID
    partition: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None = None
    """Epoch and end offset up to which the leader's history and the follower's can be the same (KIP-595)."""
    current_leader: tuple[int, int] | None = None
    """Id and epoch (KIP-951)."""
    aborted: Sequence[tuple[int, int]] = ()
    """Producer id and first offset of each aborted transaction among the records; for read_committed only."""


class FetchResponse(NamedTuple):
    throttle_time_ms: int
    error_code: ErrorCode
    session_id: int
    partitions: list[FetchResponsePartition]


def read_fetch_response(version: int, frame: memoryview) -> FetchResponse:
    """Reads a whole frame, header included. Raises DecodeError when it is no Fetch response of this version."""
    try:
        return (_Reader if FETCH.is_flexible(version) else _LegacyReader)(version, frame).read()
    except (struct.error, IndexError):
        raise DecodeError(f"Fetch v{version}: the response ends too early") from None


class _Reader:
    """Walks over one response of version 12 or later; ``_position`` is where the next field begins."""

    def __init__(self, version: int, frame: memoryview) -> None:
        self._version = version
        self._frame = frame
        self._position = INT32.size
        self._partitions: list[FetchResponsePartition] = []

    def read(self) -> FetchResponse:
        self._skip_tags()
        if self._version >= HAS_SESSION:
            throttle_time_ms, code, session_id = _SESSION.unpack_from(self._frame, self._position)
            self._position += _SESSION.size
        else:
            (throttle_time_ms,), code, session_id = INT32.unpack_from(self._frame, self._position), 0, 0
            self._position += INT32.size
        for _ in range(self._length()):
            topic_id = self._topic()
            for _ in range(self._length()):
                self._partition(topic_id)
            self._skip_tags()
        self._skip_tags()
        return FetchResponse(throttle_time_ms, error_code_of(code), session_id, self._partitions)

    def _topic(self) -> UUID:
        if self._version < HAS_TOPIC_ID:
            # Past the end of the frame, the next field ends too early.
            size = self._length()
            self._position += size
            return _NO_ID
        end = self._position + _ID_SIZE
        if end > len(self._frame):
            raise DecodeError(f"Fetch v{self._version}: the response ends inside a topic id")
        topic_id = _uuid(bytes(self._frame[self._position : end]))
        self._position = end
        return topic_id

    def _partition(self, topic_id: UUID) -> None:
        frame = self._frame
        index, code, high_watermark, last_stable_offset, log_start_offset = _PARTITION.unpack_from(
            frame, self._position
        )
        self._position += _PARTITION.size
        aborted = self._aborted(count) if (count := self._length()) else ()
        # The preferred read replica.
        self._position += INT32.size
        records = self._records()
        diverging_epoch = current_leader = None
        if frame[self._position]:
            diverging_epoch, current_leader = self._partition_tags()
        else:
            self._position += 1
        self._partitions.append(
            FetchResponsePartition(
                topic_id,
                index,
                error_code_of(code),
                high_watermark,
                last_stable_offset,
                log_start_offset,
                records,
                diverging_epoch,
                current_leader,
                aborted,
            )
        )

    def _aborted(self, count: int) -> Sequence[tuple[int, int]]:
        aborted = []
        for _ in range(count):
            aborted.append(_ABORTED.unpack_from(self._frame, self._position))
            self._position += _ABORTED.size
            self._skip_tags()
        return aborted

    def _records(self) -> memoryview:
        size = self._length()
        start, end = self._position, self._position + size
        if end > len(self._frame):
            raise DecodeError(f"Fetch v{self._version}: {size} bytes of records, {len(self._frame) - start} are there")
        self._position = end
        return self._frame[start:end]

    def _partition_tags(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        diverging_epoch = current_leader = None
        count, position = read_uvarint(self._frame, self._position)
        for _ in range(count):
            tag, position = read_uvarint(self._frame, position)
            size, position = read_uvarint(self._frame, position)
            content = self._frame[position : position + size]
            if len(content) < size:
                raise DecodeError(f"Fetch v{self._version}: the response ends inside a tagged field")
            if tag == _DIVERGING_EPOCH_TAG:
                diverging_epoch = _EPOCH_END_OFFSET.unpack_from(content)
            elif tag == _CURRENT_LEADER_TAG:
                current_leader = _LEADER_AND_EPOCH.unpack_from(content)
            position += size
        self._position = position
        # A broker that does not leave out defaults sends all fields at their default for none.
        return _unless_default(diverging_epoch), _unless_default(current_leader)

    def _length(self) -> int:
        """Reads the length of an array, a string or records; 0 for null."""
        first = self._frame[self._position]
        if first < 0x80:
            self._position += 1
            return max(0, first - 1)
        length, self._position = read_uvarint(self._frame, self._position)
        return max(0, length - 1)

    def _skip_tags(self) -> None:
        if self._frame[self._position]:
            self._position = skip_tagged_fields(self._frame, self._position)
        else:
            self._position += 1


class _LegacyReader(_Reader):
    """Versions 4 to 11: lengths of four bytes (of a name, two), no tagged fields."""

    def _topic(self) -> UUID:
        (size,) = _INT16.unpack_from(self._frame, self._position)
        self._position += _INT16.size + max(0, size)
        return _NO_ID

    def _partition(self, topic_id: UUID) -> None:
        log_start_offset = -1
        if self._version >= HAS_LOG_START_OFFSET:
            index, code, high_watermark, last_stable_offset, log_start_offset = _PARTITION.unpack_from(
                self._frame, self._position
            )
            self._position += _PARTITION.size
        else:
            index, code, high_watermark, last_stable_offset = _PARTITION_V4.unpack_from(self._frame, self._position)
            self._position += _PARTITION_V4.size
        aborted = self._aborted(self._length())
        if self._version >= HAS_PREFERRED_READ_REPLICA:
            self._position += INT32.size
        self._partitions.append(
            FetchResponsePartition(
                topic_id,
                index,
                error_code_of(code),
                high_watermark,
                last_stable_offset,
                log_start_offset,
                self._records(),
                aborted=aborted,
            )
        )

    def _length(self) -> int:
        length: int = INT32.unpack_from(self._frame, self._position)[0]
        self._position += INT32.size
        return max(0, length)

    def _skip_tags(self) -> None:
        pass


def _unless_default(pair: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if pair == (-1, -1) else pair


def error_code_of(number: int) -> ErrorCode:
    """Returns ``unknown_server_error`` for a code of a later version of Kafka."""
    code = _CODES.get(number)
    return ErrorCode.unknown_server_error if code is None else code


_CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


@functools.lru_cache(maxsize=4096)
def _uuid(content: bytes) -> UUID:
    """Returns the same object for the same topic in every response: to build a UUID is slow, and to compare two."""
    return UUID(bytes=content)
