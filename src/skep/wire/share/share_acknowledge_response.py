"""Encodes the ShareAcknowledge response by hand, versions 1 and 2."""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from skep.base.loop.slicer import Work
from skep.wire.apis import SHARE_ACKNOWLEDGE
from skep.wire.codec import JOINED_PARTS, response_too_large
from skep.wire.headers import response_header
from skep.wire.leader_hints import NodeEndpoint, endpoint_array
from skep.wire.primitives import INT32, compact_string, uvarint

HAS_LOCK_TIMEOUT = 2

_BEGIN = struct.Struct(">i3x")
"""Throttle time, no error and no message of the request."""
_INDEX_AND_CODE = struct.Struct(">ih")
_LEADER = struct.Struct(">iixx")
"""Leader id and epoch, no tagged fields of them and of the partition."""
_NO_LEADER = (-1, -1)
_NO_ERROR = (0, None, None)
"""Code, message and leader of a partition without an error."""
_ONE_BEGIN = struct.Struct(">ixi3x")
"""Correlation id, the header's tags, and ``_BEGIN``."""
_ONE = struct.Struct(">B16sBi")
"""The count of topics, the topic's id, the count of its partitions, and the partition."""
_ONE_END = bytes(3) + _LEADER.pack(*_NO_LEADER) + b"\0\1\0"
"""No error and no message, no leader; no tagged fields of the topic, no endpoints, no tagged fields of the response."""


class AcknowledgedPartition(NamedTuple):
    """The result of one partition."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """Broker id and leader epoch."""


def encode_share_acknowledge(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[UUID, Sequence[AcknowledgedPartition]]],
    acquisition_lock_timeout_ms: int,
    max_bytes: int,
    node_endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> Work[tuple[bytes, ...]]:
    """Returns the whole response as parts, header included, without the frame length. Work for a ``Slicer``.

    Raises KafkaError INVALID_REQUEST if it is larger than ``max_bytes``: each partition may have a message.
    """
    if len(topics) == 1 and len(topics[0][1]) == 1 and not node_endpoints and topics[0][1][0][1:] == _NO_ERROR:
        topic_id, (only,) = topics[0]
        lock_time = INT32.pack(acquisition_lock_timeout_ms) if version >= HAS_LOCK_TIMEOUT else b""
        yield
        return (
            _ONE_BEGIN.pack(correlation_id, throttle_ms)
            + lock_time
            + _ONE.pack(2, topic_id.bytes, 2, only.partition)
            + _ONE_END,
        )
    parts: list[bytes] = []
    out = [response_header(SHARE_ACKNOWLEDGE.key, version, correlation_id), _BEGIN.pack(throttle_ms)]
    if version >= HAS_LOCK_TIMEOUT:
        out.append(INT32.pack(acquisition_lock_timeout_ms))
    out.append(uvarint(len(topics) + 1))
    for topic_id, partitions in topics:
        out.append(topic_id.bytes + uvarint(len(partitions) + 1))
        for partition, code, message, leader in partitions:
            text = b"\0" if message is None else compact_string(message)
            out.append(_INDEX_AND_CODE.pack(partition, code) + text + _LEADER.pack(*(leader or _NO_LEADER)))
            if len(out) >= JOINED_PARTS:
                parts.append(b"".join(out))
                out.clear()
                if sum(map(len, parts)) > max_bytes:
                    raise response_too_large(SHARE_ACKNOWLEDGE.key, max_bytes)
            yield
        out.append(b"\0")
    out.append(endpoint_array(node_endpoints) + b"\0")
    parts.append(b"".join(out))
    return tuple(parts)
