"""The current leader of a partition, in tagged fields of Produce and Fetch responses (KIP-951).

A client that asked the wrong broker can ask the right one at once, without a Metadata request. The partition has the
leader and its epoch, and the end of the response has the addresses of all these leaders.
"""

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from skep.wire.primitives import INT32, compact_string, uvarint

_LEADER_AND_EPOCH = struct.Struct(">iix")


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


def tagged_leader(tag: bytes, leader: tuple[int, int]) -> bytes:
    """Returns the tag, the size, and the leader's id and epoch."""
    return tag + _LEADER_SIZE + _LEADER_AND_EPOCH.pack(*leader)


_LEADER_SIZE = uvarint(_LEADER_AND_EPOCH.size)


def endpoint_tags(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Returns the tagged fields at the end of a response: none, or field 0 with the endpoints."""
    if not endpoints:
        return b"\0"
    content = endpoint_array(endpoints)
    return b"\1\0" + uvarint(len(content)) + content


def endpoint_array(endpoints: Sequence[NodeEndpoint]) -> bytes:
    return uvarint(len(endpoints) + 1) + b"".join(map(_endpoint, endpoints))


@functools.lru_cache(maxsize=1024)
def _endpoint(endpoint: NodeEndpoint) -> bytes:
    rack = b"\0" if endpoint.rack is None else compact_string(endpoint.rack)
    return INT32.pack(endpoint.node_id) + compact_string(endpoint.host) + INT32.pack(endpoint.port) + rack + b"\0"
