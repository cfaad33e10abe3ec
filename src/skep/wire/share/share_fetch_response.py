"""Encodes the ShareFetch response by hand, versions 1 and 2, as a list of parts. Records are passed on, never copied.

``fetch_response.py`` says what a part is. The two versions do not differ. Records that do not exist are empty, not
null: librdkafka cannot read null.
"""

import struct
from collections.abc import Sequence, Sized
from typing import NamedTuple
from uuid import UUID

from skep.base.loop.slicer import Work
from skep.wire.apis import SHARE_FETCH
from skep.wire.fetch.fetch_response import ResponseParts
from skep.wire.headers import response_header
from skep.wire.leader_hints import NodeEndpoint, endpoint_array
from skep.wire.primitives import INT32, compact_string, uvarint

_BEGIN = struct.Struct(">ih")
"""Throttle time, error code."""
_INDEX_AND_CODE = struct.Struct(">ih")
_CODE = struct.Struct(">h")
_LEADER = struct.Struct(">iix")
"""Leader id and epoch, and no tagged fields."""
_ACQUIRED = struct.Struct(">qqhx")
_NO_LEADER = (-1, -1)
_NO_ERROR = (0, None, 0, None, None)
"""Codes, messages and leader of a partition without an error."""
_ONE_BEGIN = struct.Struct(">ixihxiB16sBi")
"""Correlation id, the header's tags, throttle time, no error and no message, the time of locks, the count of topics,
the topic's id, the count of its partitions, and the partition."""
_ONE_RESULT = bytes(6) + _LEADER.pack(*_NO_LEADER)
_ONE_END = b"\0\0\1\0"
"""No tagged fields of the partition and the topic, no endpoints, no tagged fields of the response."""


class SharedPartition(NamedTuple):
    """The result of one partition: of its fetch, and of the acknowledgements in the request."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """Broker id and leader epoch."""
    records: Sized = b""
    acquired: Sequence[tuple[int, int, int]] = ()
    """First offset, last offset and delivery count of each range."""


def encode_share_fetch(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[UUID, Sequence[SharedPartition]]],
    acquisition_lock_timeout_ms: int,
    node_endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> Work[tuple[Sized, ...]]:
    """Returns the whole response as parts, header included, without the frame length. Work for a ``Slicer``."""
    if len(topics) == 1 and len(topics[0][1]) == 1 and not node_endpoints:
        topic_id, (only,) = topics[0]
        if only[1:6] == _NO_ERROR:
            begin = _ONE_BEGIN.pack(
                correlation_id, throttle_ms, 0, acquisition_lock_timeout_ms, 2, topic_id.bytes, 2, only.partition
            )
            return _one_partition(begin, only.records, only.acquired)
    out = ResponseParts()
    out.add(response_header(SHARE_FETCH.key, version, correlation_id))
    out.add(_BEGIN.pack(throttle_ms, 0) + _nullable(None) + INT32.pack(acquisition_lock_timeout_ms))
    out.add(uvarint(len(topics) + 1))
    for topic_id, partitions in topics:
        out.add(topic_id.bytes + uvarint(len(partitions) + 1))
        for one in partitions:
            out.add(_INDEX_AND_CODE.pack(one.partition, one.error_code) + _nullable(one.error_message))
            out.add(_CODE.pack(one.acknowledge_error_code) + _nullable(one.acknowledge_error_message))
            out.add(_LEADER.pack(*(one.current_leader or _NO_LEADER)) + uvarint(len(one.records) + 1))
            out.add_records(one.records)
            out.add(uvarint(len(one.acquired) + 1) + b"".join(_ACQUIRED.pack(*acquired) for acquired in one.acquired))
            out.add(b"\0")
            yield
        out.add(b"\0")
    out.add(endpoint_array(node_endpoints) + b"\0")
    return out.finish()


def _one_partition(begin: bytes, records: Sized, acquired: Sequence[tuple[int, int, int]]) -> tuple[Sized, ...]:
    """Encodes the most frequent response: one partition without an error."""
    begin += _ONE_RESULT + uvarint(len(records) + 1)
    ranges = [_ACQUIRED.pack(*one) for one in acquired]
    end = b"".join((uvarint(len(ranges) + 1), *ranges, _ONE_END))
    if isinstance(records, bytes):
        return (begin + records + end,)
    return (begin, records, end) if len(records) else (begin + end,)


def _nullable(text: str | None) -> bytes:
    return b"\0" if text is None else compact_string(text)
