"""The Fetch answer read by hand, as a follower needs it: all partitions of it, versions 13 to 18.

kio would copy the records out of the answer; here they are views into the frame. Everything is read before anything is
given, so a follower never acts on half of an answer that turns out to be damaged. Left out is what only consumers use:
aborted transactions, the replica to read from, the endpoints of other brokers.
"""

import functools
import struct
from typing import NamedTuple
from uuid import UUID

from skep.base.errors import DecodeError, ErrorCode
from skep.wire.primitives import INT32, read_uvarint, skip_tagged_fields

OLDEST = 13
"""The first with topic ids; from then on only tagged fields were added."""

_SESSION = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_EPOCH_END_OFFSET = struct.Struct(">iq")
_LEADER_AND_EPOCH = struct.Struct(">ii")
_ABORTED_SIZE = 16
_ID_SIZE = 16
_DIVERGING_EPOCH_TAG = 0
_CURRENT_LEADER_TAG = 1


class AnsweredPartition(NamedTuple):
    """A partition's piece; ``records`` lies in the frame of the answer."""

    topic_id: UUID
    partition: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None = None
    """Epoch and end offset up to which the leader's history and that of the asker can be the same (KIP-595)."""
    current_leader: tuple[int, int] | None = None
    """Id and epoch (KIP-951)."""


class FollowerAnswer(NamedTuple):
    throttle_time_ms: int
    error_code: ErrorCode
    session_id: int
    partitions: list[AnsweredPartition]


def read_follower_answer(frame: memoryview) -> FollowerAnswer:
    """From the whole frame, header included. DecodeError when it is not such an answer."""
    try:
        return _Reader(frame).answer()
    except (struct.error, IndexError):
        raise DecodeError("Fetch: the answer ends too early") from None


class _Reader:
    """Walks over one answer; ``_position`` is where the next field begins."""

    def __init__(self, frame: memoryview) -> None:
        self._frame = frame
        self._position = INT32.size
        self._partitions: list[AnsweredPartition] = []

    def answer(self) -> FollowerAnswer:
        self._skip_tags()
        throttle_time_ms, code, session_id = _SESSION.unpack_from(self._frame, self._position)
        self._position += _SESSION.size
        for _ in range(self._length()):
            self._topic()
        self._skip_tags()
        return FollowerAnswer(throttle_time_ms, error_code_of(code), session_id, self._partitions)

    def _topic(self) -> None:
        end = self._position + _ID_SIZE
        if end > len(self._frame):
            raise DecodeError("Fetch: the answer ends inside a topic id")
        topic_id = _uuid(bytes(self._frame[self._position : end]))
        self._position = end
        for _ in range(self._length()):
            self._partition(topic_id)
        self._skip_tags()

    def _partition(self, topic_id: UUID) -> None:
        frame = self._frame
        index, code, high_watermark, last_stable_offset, log_start_offset = _PARTITION.unpack_from(
            frame, self._position
        )
        self._position += _PARTITION.size
        for _ in range(self._length()):
            self._position += _ABORTED_SIZE
            self._skip_tags()
        # The preferred read replica.
        self._position += INT32.size
        size = self._length()
        start, end = self._position, self._position + size
        if end > len(frame):
            raise DecodeError(f"Fetch: {size} bytes of records, {len(frame) - start} are there")
        self._position = end
        diverging_epoch = current_leader = None
        if frame[end]:
            diverging_epoch, current_leader = self._partition_tags()
        else:
            self._position += 1
        self._partitions.append(
            AnsweredPartition(
                topic_id,
                index,
                error_code_of(code),
                high_watermark,
                last_stable_offset,
                log_start_offset,
                frame[start:end],
                diverging_epoch,
                current_leader,
            )
        )

    def _partition_tags(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        diverging_epoch = current_leader = None
        count, position = read_uvarint(self._frame, self._position)
        for _ in range(count):
            tag, position = read_uvarint(self._frame, position)
            size, position = read_uvarint(self._frame, position)
            content = self._frame[position : position + size]
            if len(content) < size:
                raise DecodeError("Fetch: the answer ends inside a tagged field")
            if tag == _DIVERGING_EPOCH_TAG:
                diverging_epoch = _EPOCH_END_OFFSET.unpack_from(content)
            elif tag == _CURRENT_LEADER_TAG:
                current_leader = _LEADER_AND_EPOCH.unpack_from(content)
            position += size
        self._position = position
        # All fields at their default is how a broker that does not leave them out says that there is nothing.
        return _unless_default(diverging_epoch), _unless_default(current_leader)

    def _length(self) -> int:
        """Of an array or of records; null is as good as empty."""
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


def _unless_default(pair: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if pair == (-1, -1) else pair


def error_code_of(number: int) -> ErrorCode:
    """One that we do not know is an unknown error."""
    code = _CODES.get(number)
    return ErrorCode.unknown_server_error if code is None else code


_CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


@functools.lru_cache(maxsize=4096)
def _uuid(content: bytes) -> UUID:
    """The same object for the same topic in every answer: making one is slow, and so is comparing two."""
    return UUID(bytes=content)
