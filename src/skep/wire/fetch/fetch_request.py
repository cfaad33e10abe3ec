"""The Fetch request of a follower by hand, version 17: it is written once a round, for as many partitions as have news.

A property test holds it against kio. Left out is what a follower does not say: isolation level (it takes everything),
rack, the id of its directory.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from skep.wire.primitives import uvarint

VERSION = 17

_BEGIN = struct.Struct(">iiixii")
"""Longest wait, least and most bytes, isolation level 0, session and its epoch."""
_PARTITION = struct.Struct(">iiqiqix")
_NO_RACK = b"\1"
_REPLICA_STATE = struct.Struct(">BBBiqx")
_REPLICA_STATE_TAG = 1


class FollowerPartition(NamedTuple):
    """Where a follower is in one partition; ``last_fetched_epoch`` is that of its last batch, -1 when it has none."""

    topic_id: UUID
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


def encode_follower_fetch(
    *,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int,
    session_epoch: int,
    partitions: Iterable[FollowerPartition],
    forgotten: Iterable[tuple[UUID, int]] = (),
) -> bytes:
    """The request behind its header. ``forgotten``: topic ids and partitions that the session is to leave out."""
    wanted: dict[UUID, list[bytes]] = {}
    for topic_id, *position in partitions:
        wanted.setdefault(topic_id, []).append(_PARTITION.pack(*position))
    left_out: dict[UUID, list[int]] = {}
    for topic_id, partition in forgotten:
        left_out.setdefault(topic_id, []).append(partition)
    parts = [_BEGIN.pack(max_wait_ms, min_bytes, max_bytes, session_id, session_epoch), uvarint(len(wanted) + 1)]
    for topic_id, positions in wanted.items():
        parts += (topic_id.bytes, uvarint(len(positions) + 1), *positions, b"\0")
    parts.append(uvarint(len(left_out) + 1))
    for topic_id, indexes in left_out.items():
        parts += (topic_id.bytes, uvarint(len(indexes) + 1), struct.pack(f">{len(indexes)}ix", *indexes))
    parts.append(_NO_RACK)
    # One tagged field, its tag, its size: the replica's id and its broker epoch (KIP-903).
    parts.append(_REPLICA_STATE.pack(1, _REPLICA_STATE_TAG, _REPLICA_STATE.size - 3, replica_id, replica_epoch))
    return b"".join(parts)
