"""The Produce request that nearly all are, read by hand: one topic, one partition, no transaction, versions 9 to 11.

A producer says the same again and again, but for the correlation id, the partition and the batch. What it said before
the partition is looked up by its bytes: client id, acks, timeout and topic come from the first such request, which kio
has read. Whatever looks different is None here, and kio's. A property test holds the two against each other.

The batch is a view into the frame, which is valid only until the loop receives again (``framing``): it has to be
checked and written before the next ``await``. kio copies it.
"""

import struct
from datetime import timedelta
from typing import Any, NamedTuple

from skep.wire.apis import PRODUCE
from skep.wire.primitives import compact_string, read_uvarint, string

HEADS_KEPT = 1024
LONGEST_HEAD = 512
"""Together they bound what clients with long names for themselves can make us keep."""

_FIXED = struct.Struct(">hhih")
_INDEX_AND_SIZE = struct.Struct(">iBB")
"""The partition, and of the size of its batch the first two bytes; more than one for any batch above 126 bytes."""
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_HEAD_BEGIN = 8
"""Behind the correlation id, where the client id begins with its length."""
_NAME_LENGTH = 19
"""Where the length of the topic's name stands when the client id has no bytes."""
_NO_TAGS = b"\0"
_NO_TRANSACTION = b"\0"
_ONE = b"\2"
_END = b"\0\0\0"
"""No tags of the partition, the topic, the request."""
_LONGEST_NAME = 126
"""What a length of one byte can say."""
_MILLISECOND = timedelta(milliseconds=1)


class OnePartition(NamedTuple):
    index: int  # type: ignore[assignment]  # the name that Kafka gives it, where tuples have a method
    records: memoryview


class OneTopic(NamedTuple):
    name: str
    partition_data: tuple[OnePartition]


class OneBatch(NamedTuple):
    """As kio's ProduceRequest, as far as it is looked at."""

    transactional_id: None
    acks: int
    timeout: timedelta
    topic_data: tuple[OneTopic]


class OneBatchRequest(NamedTuple):
    version: int
    correlation_id: int
    client_id: str
    body: OneBatch


class OneBatchReader:
    """Owns what was seen before: the bytes from the client id to the count of partitions, and what they say."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[str, int, timedelta, str]] = {}

    def read(self, frame: memoryview) -> OneBatchRequest | None:
        """The request of a frame with the key of Produce; None when it has to be read by kio."""
        try:
            _, version, correlation_id, client_id_length = _FIXED.unpack_from(frame)
            name_length = _NAME_LENGTH + client_id_length
            position = name_length + frame[name_length] + 1
            head = self._heads.get(bytes(frame[_HEAD_BEGIN:position]))
            if head is None or not PRODUCE.flexible_from <= version <= PRODUCE.newest:
                return None
            index, low, high = _INDEX_AND_SIZE.unpack_from(frame, position)
        except (IndexError, struct.error):
            return None
        if low >= 0x80 > high:
            size, position = low & 0x7F | high << 7, position + 6
        else:
            size, position = read_uvarint(frame, position + 4)
        end = position + size - 1
        # No size is null records, whose one byte must not be taken for the first of the end.
        if not size or frame[end:] != _END:
            return None
        client_id, acks, timeout, topic = head
        partition = _new(OnePartition, (index, frame[position:end]))
        body = _new(OneBatch, (None, acks, timeout, (_new(OneTopic, (topic, (partition,))),)))
        request: OneBatchRequest = _new(OneBatchRequest, (version, correlation_id, client_id, body))
        return request

    def remember(self, version: int, client_id: str | None, body: Any) -> None:
        """Takes note of a request that kio has read. The bytes are made from it, so they say just that."""
        if client_id is None or version < PRODUCE.flexible_from or body.transactional_id is not None:
            return
        if len(body.topic_data) != 1 or len(body.topic_data[0].partition_data) != 1:
            return
        topic, timeout_ms = body.topic_data[0].name, body.timeout // _MILLISECOND
        if len(topic.encode()) > _LONGEST_NAME:
            return
        before = string(client_id) + _NO_TAGS + _NO_TRANSACTION + _ACKS_AND_TIMEOUT.pack(body.acks, timeout_ms)
        head = before + _ONE + compact_string(topic) + _ONE
        if len(head) > LONGEST_HEAD:
            return
        if len(self._heads) >= HEADS_KEPT:
            self._heads.clear()
        self._heads[head] = (client_id, body.acks, body.timeout, topic)


# As calling the classes does, in half the time: this is the path of every produce.
_new: Any = tuple.__new__
