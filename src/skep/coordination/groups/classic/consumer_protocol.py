"""The embedded protocol of consumers: the subscription in JoinGroup, and the assignment in SyncGroup.

In a classic group both are bytes to the broker, except that it reads the topics of a subscription. In a consumer group
(KIP-848) the broker reads the subscriptions of classic members and writes their assignments. Both start with a version,
and a newer version only adds to the end.
"""

import functools
import io
import struct
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from skep.base.errors import DecodeError
from skep.wire.entities.request_bounds import RequestBounds

CONSUMER = "consumer"
"""The protocol type of consumers."""
NEWEST = 3
HAS_OWNED_PARTITIONS = 1
_VERSION = struct.Struct(">h")

Numbers = Mapping[str, frozenset[int]]
"""Partitions by topic name."""


class Subscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: Numbers
    rack_id: str | None


class Assignment(NamedTuple):
    partitions: Numbers
    user_data: bytes


def read_subscription(data: bytes) -> Subscription:
    """Raises ValueError for bytes that are not a subscription.

    Before version 1 it has no owned partitions: such a member revokes everything before it rejoins.
    """
    version, read = _read("subscription", "ConsumerProtocolSubscription", data)
    owned = read.owned_partitions if version >= HAS_OWNED_PARTITIONS else ()
    return Subscription(version, frozenset(read.topics), _numbers(owned), getattr(read, "rack_id", None))


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Returns the topics of a subscription; None if the bytes are not one, for a client may send any bytes.

    Version 0 reads the topics of every version.
    """
    if len(metadata) < _VERSION.size:
        return None
    try:
        return frozenset(_read_version("subscription", "ConsumerProtocolSubscription", 0, metadata).topics)
    except (DecodeError, SerialError, ValueError, OverflowError):
        return None


def read_assignment(data: bytes) -> Assignment:
    """Raises ValueError for bytes that are not an assignment. Empty bytes are an empty assignment."""
    if not data:
        return Assignment({}, b"")
    _, read = _read("assignment", "ConsumerProtocolAssignment", data)
    return Assignment(_numbers(read.assigned_partitions), bytes(read.user_data or b""))


def write_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    module = _module("assignment", version)
    buffer = io.BytesIO()
    buffer.write(_VERSION.pack(version))
    assignment = module.ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            module.TopicPartition(topic=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in sorted(partitions.items())
        ),
    )
    entity_writer(module.ConsumerProtocolAssignment)(buffer, assignment)
    return buffer.getvalue()


def _numbers(topics: Iterable[Any]) -> Numbers:
    return {topic.topic: frozenset(topic.partitions) for topic in topics if topic.partitions}


def _read(kind: str, name: str, data: bytes) -> tuple[int, Any]:
    if len(data) < _VERSION.size:
        raise ValueError(f"{len(data)} bytes are not a {kind}")
    version = min(_VERSION.unpack_from(data)[0], NEWEST)
    if version < 0:
        raise ValueError(f"version {version} of a {kind}")
    try:
        return version, _read_version(kind, name, version, data)
    except (DecodeError, SerialError, OverflowError) as error:
        raise ValueError(f"the {kind} is corrupt: {error}") from None


def _read_version(kind: str, name: str, version: int, data: bytes) -> Any:
    bounds, read = _reader(kind, name, version)
    frame = memoryview(data)
    # kio trusts the lengths that it reads, and nothing has checked these bytes before.
    bounds.checked(frame, _VERSION.size)
    return read(frame, _VERSION.size)[0]


@functools.cache
def _reader(kind: str, name: str, version: int) -> tuple[RequestBounds, Callable[[memoryview, int], tuple[Any, int]]]:
    entity = getattr(_module(kind, version), name)
    return RequestBounds(entity), entity_reader(entity)


@functools.cache
def _module(kind: str, version: int) -> Any:
    return import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
