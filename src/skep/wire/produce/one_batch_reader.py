"""Decodes the most frequent Produce request by hand: one topic, one partition, no transaction, version 9 or above.

The requests of a producer differ only in correlation id, partition and batch. The bytes before the partition are looked
up in a table: client id, acks, timeout and topic come from the first such request, which kio has read. ``read`` returns
None for any other request, and kio reads it. A property test compares the two.

The batch is a view into the frame, which is valid only until the loop receives again (``frame_reader.py``). It must be
checked and written before the next ``await``. kio copies it.
"""

import struct
from datetime import timedelta
from typing import Any, NamedTuple

from skep.wire.apis import PRODUCE
from skep.wire.primitives import compact_string, read_uvarint, string

HEADS_KEPT = 1024
LONGEST_HEAD = 512
"""Together they limit the memory that clients with long client ids can take."""

_FIXED = struct.Struct(">hhih")
_INDEX_AND_SIZE = struct.Struct(">iBB")
"""The partition, and the first two bytes of the batch size, which has more than one for a batch above 126 bytes."""
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_HEAD_BEGIN = 8
"""The position behind the correlation id, where the length of the client id is."""
_NAME_LENGTH = 19
"""The position of the length of the topic name for an empty client id."""
_NO_TAGS = b"\0"
_NO_TRANSACTION = b"\0"
_ONE = b"\2"
_END = b"\0\0\0"
"""No tagged fields of the partition, the topic and the request."""
_LONGEST_NAME = 126
"""The longest name with a length of one byte."""
_MILLISECOND = timedelta(milliseconds=1)


class OnePartition(NamedTuple):
    index: int  # type: ignore[assignment]  # Kafka's name; tuples have a method of that name
    records: memoryview | bytes
    """Bytes in a copy that outlives the frame."""


class OneTopic(NamedTuple):
    name: str
    partition_data: tuple[OnePartition]


class OneBatch(NamedTuple):
    """The fields of kio's ProduceRequest that the handler reads."""

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
    """Owns the heads of earlier requests: the bytes from client id to the count of partitions, with their values."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[str, int, timedelta, str]] = {}

    def read(self, frame: memoryview) -> OneBatchRequest | None:
        """Returns the request of a Produce frame; None if kio has to read it."""
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
        # Size 0 means null records. Its byte must not be taken for the first byte of the end.
        if not size or frame[end:] != _END:
            return None
        client_id, acks, timeout, topic = head
        partition = _new(OnePartition, (index, frame[position:end]))
        body = _new(OneBatch, (None, acks, timeout, (_new(OneTopic, (topic, (partition,))),)))
        request: OneBatchRequest = _new(OneBatchRequest, (version, correlation_id, client_id, body))
        return request

    def remember(self, version: int, client_id: str | None, body: Any) -> None:
        """Adds the head of a request that kio has read. The bytes are encoded from its values, so they match."""
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


# The same as calling the classes, in half the time. Every produce request takes this path.
_new: Any = tuple.__new__
