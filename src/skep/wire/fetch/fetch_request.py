"""A hand-written encoder of the Fetch request, versions 4 to 18, for followers and for readers.

A follower sends one request a round, which names as many partitions as have changed, so the encoder packs a partition
with one call. A property test compares it with kio's encoding.

Left out: the rack, the cluster id, the id of the follower's directory and its high watermark (KIP-1166).
"""

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from skep.wire.apis import FETCH
from skep.wire.fetch.fetch_response import HAS_SESSION, HAS_TOPIC_ID
from skep.wire.primitives import INT32, compact_string, string, uvarint

HAS_RACK = 11
HAS_LAST_FETCHED_EPOCH = 12
HAS_REPLICA_STATE = 15
"""The replica's id moved from the beginning to a tagged field and gained the broker epoch (KIP-903)."""
NO_REPLICA = -1
"""The replica id of a consumer."""

_LIMITS = struct.Struct(">iiib")
"""Longest wait, least and most bytes, isolation level."""
_SESSION = struct.Struct(">ii")
_PARTITION = struct.Struct(">iiqiqix")
_OLDER_PARTITIONS = (
    (9, struct.Struct(">iiqqi"), (0, 1, 2, 4, 5)),
    (5, struct.Struct(">iqqi"), (0, 2, 4, 5)),
    (4, struct.Struct(">iqi"), (0, 2, 5)),
)
"""By first version: the layout, and which fields of a position after its topic it has."""
_REPLICA_STATE = struct.Struct(">BBBiqx")
_REPLICA_STATE_TAG = 1
_NO_NAMES: Mapping[UUID, str] = {}


class FetchPosition(NamedTuple):
    """The position of a follower or a reader in one partition.

    ``last_fetched_epoch`` is the epoch of the follower's last batch, -1 for an empty log and for a consumer.
    """

    topic_id: UUID
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


def encode_fetch_request(
    version: int,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partitions: Iterable[FetchPosition],
    replica_id: int = NO_REPLICA,
    replica_epoch: int = -1,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Iterable[tuple[UUID, int]] = (),
    topic_names: Mapping[UUID, str] = _NO_NAMES,
) -> bytes:
    """Returns the request body. ``forgotten`` has topic ids and partitions that the session drops.

    The defaults of the session are those of a request outside any session. ``topic_names`` has the name of every topic
    by its id, for versions before 13.
    """
    is_flexible = FETCH.is_flexible(version)
    count = _compact_count if is_flexible else INT32.pack
    tags = b"\0" if is_flexible else b""
    parts = [] if version >= HAS_REPLICA_STATE else [INT32.pack(replica_id)]
    parts.append(_LIMITS.pack(max_wait_ms, min_bytes, max_bytes, isolation_level))
    if version >= HAS_SESSION:
        parts.append(_SESSION.pack(session_id, session_epoch))
    text = compact_string if is_flexible else string
    wanted = _packed_by_topic(version, partitions)
    parts.append(count(len(wanted)))
    for topic_id, positions in wanted.items():
        topic = topic_id.bytes if version >= HAS_TOPIC_ID else text(topic_names[topic_id])
        parts += (topic, count(len(positions)), *positions, tags)
    if version >= HAS_SESSION:
        dropped: dict[UUID, list[int]] = {}
        for topic_id, partition in forgotten:
            dropped.setdefault(topic_id, []).append(partition)
        parts.append(count(len(dropped)))
        for topic_id, indexes in dropped.items():
            topic = topic_id.bytes if version >= HAS_TOPIC_ID else text(topic_names[topic_id])
            parts += (topic, count(len(indexes)), struct.pack(f">{len(indexes)}i", *indexes), tags)
    if version >= HAS_RACK:
        parts.append(text(""))
    if version >= HAS_REPLICA_STATE and replica_id != NO_REPLICA:
        # One tagged field: its tag, its size, the replica's id and its broker epoch.
        parts.append(_REPLICA_STATE.pack(1, _REPLICA_STATE_TAG, _REPLICA_STATE.size - 3, replica_id, replica_epoch))
    else:
        parts.append(tags)
    return b"".join(parts)


def _packed_by_topic(version: int, partitions: Iterable[FetchPosition]) -> dict[UUID, list[bytes]]:
    wanted: dict[UUID, list[bytes]] = {}
    if version >= HAS_LAST_FETCHED_EPOCH:
        pack = _PARTITION.pack
        for topic_id, *position in partitions:
            wanted.setdefault(topic_id, []).append(pack(*position))
        return wanted
    layout, places = next((layout, places) for first, layout, places in _OLDER_PARTITIONS if version >= first)
    for topic_id, *position in partitions:
        wanted.setdefault(topic_id, []).append(layout.pack(*(position[place] for place in places)))
    return wanted


def _compact_count(number: int) -> bytes:
    return uvarint(number + 1)
