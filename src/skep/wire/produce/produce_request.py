"""A hand-written encoder of the Produce request, versions 3 to 12. It returns parts and copies no record batch.

An encoder that returns one bytes object would copy every batch; these parts are passed to ``sendmsg`` as they are. A
property test compares them with kio's encoding.
"""

import struct
from collections.abc import Mapping, Sequence

from skep.wire.apis import PRODUCE
from skep.wire.primitives import INT32, compact_string, string, uvarint

Buffer = bytes | bytearray | memoryview

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_NULL_STRING = b"\xff\xff"


def produce_request_parts(
    version: int,
    topics: Mapping[str, Sequence[tuple[int, Buffer]]],
    *,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
) -> list[Buffer]:
    """Returns the request body. ``topics`` has the partitions of each topic with their batch."""
    is_flexible = PRODUCE.is_flexible(version)
    count = _compact_count if is_flexible else INT32.pack
    text = compact_string if is_flexible else string
    tags = b"\0" if is_flexible else b""
    glue = bytearray()
    if transactional_id is None:
        glue += b"\0" if is_flexible else _NULL_STRING
    else:
        glue += text(transactional_id)
    glue += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms) + count(len(topics))
    parts: list[Buffer] = []
    for name, partitions in topics.items():
        glue += text(name) + count(len(partitions))
        for index, batch in partitions:
            glue += INT32.pack(index) + count(len(batch))
            parts += (bytes(glue), batch)
            glue = bytearray(tags)
        glue += tags
    glue += tags
    parts.append(bytes(glue))
    return parts


def _compact_count(number: int) -> bytes:
    return uvarint(number + 1)
