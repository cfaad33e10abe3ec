"""What consumers of the classic protocol say and are told within JoinGroup and SyncGroup: subscriptions, assignments.

To the broker these are bytes, until such a consumer is in a consumer group (KIP-848): then it is the broker that reads
the one and writes the other. Each begins with its version, and a newer version only adds to the end.
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

NEWEST = 3
HAS_OWNED_PARTITIONS = 1
_VERSION = struct.Struct(">h")

Numbers = Mapping[str, frozenset[int]]
"""Partitions by the names of their topics."""


class Subscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: Numbers
    rack_id: str | None


class Assignment(NamedTuple):
    partitions: Numbers
    user_data: bytes


def read_subscription(data: bytes) -> Subscription:
    """ValueError when the bytes are none. Before version 1 a member gives up everything before it joins again."""
    version, read = _read("subscription", "ConsumerProtocolSubscription", data)
    owned = read.owned_partitions if version >= HAS_OWNED_PARTITIONS else ()
    return Subscription(version, frozenset(read.topics), _numbers(owned), getattr(read, "rack_id", None))


def read_assignment(data: bytes) -> Assignment:
    """ValueError when the bytes are none; no bytes at all are an assignment of nothing."""
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
        raise ValueError(f"{len(data)} bytes are no {kind}")
    version = min(_VERSION.unpack_from(data)[0], NEWEST)
    if version < 0:
        raise ValueError(f"a {kind} of version {version}")
    bounds, read = _reader(kind, name, version)
    frame = memoryview(data)
    try:
        # kio believes the lengths that it reads, and these bytes came through unread: first see that they can be.
        bounds.checked(frame, _VERSION.size)
        return version, read(frame, _VERSION.size)[0]
    except (DecodeError, SerialError, OverflowError) as error:
        raise ValueError(f"a damaged {kind}: {error}") from None


@functools.cache
def _reader(kind: str, name: str, version: int) -> tuple[RequestBounds, Callable[[memoryview, int], tuple[Any, int]]]:
    entity = getattr(_module(kind, version), name)
    return RequestBounds(entity), entity_reader(entity)


@functools.cache
def _module(kind: str, version: int) -> Any:
    return import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
