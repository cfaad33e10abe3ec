"""Encodes the Fetch response by hand, versions 4 to 18, as a list of parts. Records are passed on, never copied.

A part is either bytes or the object that the caller passed as a partition's records, e.g. a file region that the
connection sends when its turn comes. The object only needs ``len()``.

A consumer of one partition waits for each response before its next fetch, so a response with one partition has an
encoder of its own: constant bytes are cached, the rest is packed at once.
"""

import functools
import struct
from collections.abc import Iterator, Sequence, Sized
from typing import NamedTuple
from uuid import UUID

from skep.base.loop.slicer import Work, run_at_once
from skep.wire.apis import FETCH
from skep.wire.headers import response_header
from skep.wire.leader_hints import NodeEndpoint, endpoint_tags, tagged_leader
from skep.wire.primitives import INT32, compact_string, string, uvarint

HAS_LOG_START_OFFSET = 5
HAS_SESSION = 7
HAS_PREFERRED_READ_REPLICA = 11
HAS_TOPIC_ID = 13
HAS_NODE_ENDPOINTS = 16

_V4 = struct.Struct(">ihqq")
_V5 = struct.Struct(">ihqqq")
_SESSION = struct.Struct(">ihi")
_ABORTED = struct.Struct(">qq")
_NO_REPLICA = -1
_NULL_ARRAY = INT32.pack(-1)
_ONE_BEGIN = struct.Struct(">ixihi")
"""Correlation id, the header's tags, throttle time, error code, session id."""
_PARTITION = struct.Struct(">ihqqqBi")
"""The last two are the count of aborted transactions, null (0) or none (1), and the preferred read replica."""
_ONE_END = b"\0\0\0"
"""No tagged fields of the partition, the topic and the response."""
_DIVERGING_EPOCH = struct.Struct(">BBiqx")
_DIVERGING_EPOCH_TAG = 0
_CURRENT_LEADER_TAG = b"\1"


class FetchedPartition(NamedTuple):
    """The result for one partition. The defaults are those of an error. ``aborted`` is None for read_uncommitted.

    ``preferred_read_replica`` is left out before version 11, the fields behind it before version 12.
    """

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sized = b""
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = _NO_REPLICA
    diverging_epoch: tuple[int, int] | None = None
    """The last epoch that both logs may have in common, and its end offset (KIP-595)."""
    current_leader: tuple[int, int] | None = None
    """Broker id and leader epoch (KIP-951)."""


class FetchedTopic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: Sequence[FetchedPartition]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[FetchedTopic],
    *,
    session_id: int = 0,
    error_code: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> tuple[Sized, ...]:
    """Returns the whole response as parts, header included, without the frame length. No part is empty.

    ``node_endpoints`` are the addresses of the current leaders; versions before 16 do not have them.
    """
    return run_at_once(
        encode_fetch_in_slices(version, correlation_id, topics, session_id, error_code, node_endpoints, throttle_ms)
    )


def encode_fetch_in_slices(
    version: int,
    correlation_id: int,
    topics: Sequence[FetchedTopic],
    session_id: int = 0,
    error_code: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> Work[tuple[Sized, ...]]:
    """``encode_fetch_response`` as work for a ``Slicer``: a response may have thousands of partitions."""
    if version >= FETCH.flexible_from and len(topics) == 1 and len(topics[0].partitions) == 1 and not node_endpoints:
        name, topic_id, (partition,) = topics[0]
        if not partition.aborted:
            begin = _ONE_BEGIN.pack(correlation_id, throttle_ms, error_code, session_id)
            return _one_partition(begin + _one_topic(topic_id if version >= HAS_TOPIC_ID else name), partition)
    out = ResponseParts()
    out.add(response_header(FETCH.key, version, correlation_id))
    has_session = version >= HAS_SESSION
    out.add(_SESSION.pack(throttle_ms, error_code, session_id) if has_session else INT32.pack(throttle_ms))
    if version >= FETCH.flexible_from:
        yield from _flexible_topics(out, version, topics)
        out.add(endpoint_tags(node_endpoints) if version >= HAS_NODE_ENDPOINTS else b"\0")
    else:
        yield from _legacy_topics(out, version, topics)
    return out.finish()


@functools.lru_cache(maxsize=1024)
def _one_topic(topic: str | UUID) -> bytes:
    """Encodes one topic, its name or id, and the count of one partition."""
    return b"\2" + (topic.bytes if isinstance(topic, UUID) else compact_string(topic)) + b"\2"


def _one_partition(begin: bytes, fetched: FetchedPartition) -> tuple[Sized, ...]:
    index, code, high_watermark, last_stable, log_start, records, aborted, replica, diverging, leader = fetched
    size = len(records)
    count = 0 if aborted is None else 1
    fixed = _PARTITION.pack(index, code, high_watermark, last_stable, log_start, count, replica)
    begin += fixed + uvarint(size + 1)
    end = _ONE_END if diverging is None and leader is None else _partition_tags(fetched) + _ONE_END[1:]
    if isinstance(records, bytes):
        return (begin + records + end,)
    return (begin, records, end) if size else (begin + end,)


def _partition_tags(fetched: FetchedPartition) -> bytes:
    """Returns the count, and tag, size and content of each."""
    diverging_epoch, current_leader = fetched.diverging_epoch, fetched.current_leader
    count, tags = 0, b""
    if diverging_epoch is not None:
        count, tags = 1, _DIVERGING_EPOCH.pack(_DIVERGING_EPOCH_TAG, _DIVERGING_EPOCH.size - 2, *diverging_epoch)
    if current_leader is not None:
        count, tags = count + 1, tags + tagged_leader(_CURRENT_LEADER_TAG, current_leader)
    return uvarint(count) + tags


class ResponseParts:
    """Collects bytes and records. Neighbouring bytes become one part."""

    def __init__(self) -> None:
        self._parts: list[Sized] = []
        self._bytes: list[bytes] = []
        self.add = self._bytes.append

    def add_records(self, records: Sized) -> None:
        if isinstance(records, bytes):
            self._bytes.append(records)
        elif len(records):
            self._parts.append(b"".join(self._bytes))
            self._parts.append(records)
            self._bytes.clear()

    def finish(self) -> tuple[Sized, ...]:
        if self._bytes:
            self._parts.append(b"".join(self._bytes))
        return tuple(self._parts)


def _flexible_topics(out: ResponseParts, version: int, topics: Sequence[FetchedTopic]) -> Iterator[None]:
    out.add(uvarint(len(topics) + 1))
    for topic in topics:
        out.add(topic.topic_id.bytes if version >= HAS_TOPIC_ID else compact_string(topic.name))
        out.add(uvarint(len(topic.partitions) + 1))
        for fetched in topic.partitions:
            index, code, high_watermark, last_stable, log_start, records, aborted, replica, diverging, leader = fetched
            if aborted:
                out.add(_V5.pack(index, code, high_watermark, last_stable, log_start))
                out.add(_flexible_aborted(aborted))
                out.add(INT32.pack(replica))
            else:
                count = 0 if aborted is None else 1
                out.add(_PARTITION.pack(index, code, high_watermark, last_stable, log_start, count, replica))
            out.add(uvarint(len(records) + 1))
            out.add_records(records)
            out.add(b"\0" if diverging is None and leader is None else _partition_tags(fetched))
            yield
        out.add(b"\0")


def _flexible_aborted(aborted: Sequence[tuple[int, int]]) -> bytes:
    return uvarint(len(aborted) + 1) + b"".join(_ABORTED.pack(*entry) + b"\0" for entry in aborted)


def _legacy_topics(out: ResponseParts, version: int, topics: Sequence[FetchedTopic]) -> Iterator[None]:
    out.add(INT32.pack(len(topics)))
    for topic in topics:
        out.add(string(topic.name))
        out.add(INT32.pack(len(topic.partitions)))
        for partition in topic.partitions:
            if version >= HAS_LOG_START_OFFSET:
                out.add(_V5.pack(*partition[:5]))
            else:
                out.add(_V4.pack(*partition[:4]))
            out.add(_legacy_aborted(partition.aborted))
            if version >= HAS_PREFERRED_READ_REPLICA:
                out.add(INT32.pack(partition.preferred_read_replica))
            out.add(INT32.pack(len(partition.records)))
            out.add_records(partition.records)
            yield


def _legacy_aborted(aborted: Sequence[tuple[int, int]] | None) -> bytes:
    if aborted is None:
        return _NULL_ARRAY
    return INT32.pack(len(aborted)) + b"".join(_ABORTED.pack(*entry) for entry in aborted)
