"""The records of ``__share_group_state`` in Kafka's layout (its ``share-coordinator/.../message/*.json``).

A share partition has a snapshot, which is its whole state, and after it updates with what has changed. A snapshot
without a value is a tombstone. A state may have thousands of batches, so the layout is written with ``struct``.

What Kafka does not have is in tagged fields, which Kafka's own tools skip: of a state batch one field with failures,
time and reason, of a snapshot the generation. Fields that have their defaults are left out, so the state of a group
that uses nothing of this has the bytes that Kafka writes.
"""

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from skep.base.errors import DecodeError
from skep.coordination import schema
from skep.coordination.share.share_state import (
    DELIVERY_STATES,
    REASONS,
    UNINITIALIZED,
    DeliveryState,
    SharePartitionKey,
    StateBatch,
)
from skep.wire.primitives import read_uvarint, skip_tagged_fields, uvarint

_KEY_START = struct.Struct(">hh")
_KEY_END = struct.Struct(">16si")
_SNAPSHOT = struct.Struct(">hiiiqqq")
_UPDATE = struct.Struct(">hiiq")
_BATCH = struct.Struct(">qqbhB")
"""A state batch; the last byte is the number of its tagged fields."""
_INT32 = struct.Struct(">i")
_VERSION = 0

_COMPLETE_COUNT_TAG = 0
PRIVATE_TAG = 10_000
"""Of the tagged fields that Kafka does not have, far above Kafka's."""
_MORE_HEAD = bytes((1, *uvarint(PRIVATE_TAG), 11))
"""How the tagged fields of a batch begin that has a private one, of 11 bytes, and no other."""
_MORE = struct.Struct(">qqbh4shqb")
"""A state batch with failures, time and reason."""


class ShareSnapshotKey(NamedTuple):
    share_partition: SharePartitionKey

    def encode(self) -> bytes:
        return _encode_key(0, self.share_partition)


class ShareUpdateKey(NamedTuple):
    share_partition: SharePartitionKey

    def encode(self) -> bytes:
        return _encode_key(1, self.share_partition)


class ShareSnapshotValue(NamedTuple):
    """``create_timestamp`` is that of the write that made the state, ``write_timestamp`` that of this record."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_timestamp: int
    write_timestamp: int
    batches: Sequence[StateBatch] = ()
    generation: int = 0

    def encode(self) -> bytes:
        start = _SNAPSHOT.pack(
            _VERSION,
            self.snapshot_epoch,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.create_timestamp,
            self.write_timestamp,
        )
        tags = _encode_tags(self.delivery_complete_count, self.generation)
        return start + encode_batches(self.batches) + tags


class ShareUpdateValue(NamedTuple):
    """What has changed since the record before. ``snapshot_epoch`` is that of the last snapshot."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch] = ()

    def encode(self) -> bytes:
        start = _UPDATE.pack(_VERSION, self.snapshot_epoch, self.leader_epoch, self.start_offset)
        return start + encode_batches(self.batches) + _encode_tags(self.delivery_complete_count, 0)


ShareKey = ShareSnapshotKey | ShareUpdateKey
ShareValue = ShareSnapshotValue | ShareUpdateValue


def decode_share_record(key: bytes, value: bytes | None) -> tuple[ShareKey, ShareValue | None] | None:
    """Returns a key and its value (None for a tombstone), or None for an unknown kind. Raises ValueError for damaged
    bytes."""
    kind = schema.leading_number(key)
    try:
        if kind == 0:
            return ShareSnapshotKey(_decode_key(key)), None if value is None else _decode_snapshot(value)
        if kind == 1:
            return ShareUpdateKey(_decode_key(key)), None if value is None else _decode_update(value)
    except (struct.error, DecodeError) as error:
        raise ValueError(f"a share state record of kind {kind}: {error}") from None
    return None


def _encode_key(kind: int, share_partition: SharePartitionKey) -> bytes:
    group_id, topic_id, partition = share_partition
    encoded = group_id.encode()
    return _KEY_START.pack(kind, len(encoded)) + encoded + _KEY_END.pack(topic_id.bytes, partition)


def _decode_key(data: bytes) -> SharePartitionKey:
    _, length = _KEY_START.unpack_from(data)
    end = _KEY_START.size + length
    if length < 0 or len(data) != end + _KEY_END.size:
        raise ValueError(f"a group id of {length} bytes in a share state key of {len(data)} bytes")
    topic_id, partition = _KEY_END.unpack_from(data, end)
    return SharePartitionKey(data[_KEY_START.size : end].decode(), uuid.UUID(bytes=topic_id), partition)


def encode_batches(batches: Sequence[StateBatch]) -> bytes:
    parts = [uvarint(len(batches) + 1)]
    for batch in batches:
        first, last, state, count, failures, not_before_ms, reason = batch
        if failures or not_before_ms or reason:
            parts.append(_MORE.pack(first, last, state, count, _MORE_HEAD, failures, not_before_ms, reason))
        else:
            parts.append(_BATCH.pack(first, last, state, count, 0))
    return b"".join(parts)


def _encode_tags(complete_count: int, generation: int) -> bytes:
    # Kafka leaves out a tagged field that has its default.
    fields = [(_COMPLETE_COUNT_TAG, complete_count)] if complete_count != UNINITIALIZED else []
    fields += [(PRIVATE_TAG, generation)] if generation else []
    parts = [uvarint(tag) + uvarint(_INT32.size) + _INT32.pack(value) for tag, value in fields]
    return uvarint(len(parts)) + b"".join(parts)


def _decode_snapshot(data: bytes) -> ShareSnapshotValue:
    version, snapshot_epoch, state_epoch, leader_epoch, start_offset, created, written = _SNAPSHOT.unpack_from(data)
    _check_version(version)
    batches, tags = _decode_rest(data, _SNAPSHOT.size)
    return ShareSnapshotValue(
        snapshot_epoch,
        state_epoch,
        leader_epoch,
        start_offset,
        tags.get(_COMPLETE_COUNT_TAG, UNINITIALIZED),
        created,
        written,
        batches,
        tags.get(PRIVATE_TAG, 0),
    )


def _decode_update(data: bytes) -> ShareUpdateValue:
    version, snapshot_epoch, leader_epoch, start_offset = _UPDATE.unpack_from(data)
    _check_version(version)
    batches, tags = _decode_rest(data, _UPDATE.size)
    complete_count = tags.get(_COMPLETE_COUNT_TAG, UNINITIALIZED)
    return ShareUpdateValue(snapshot_epoch, leader_epoch, start_offset, complete_count, batches)


def _decode_rest(data: bytes, position: int) -> tuple[list[StateBatch], dict[int, int]]:
    """Returns the batches, and the tagged fields of four bytes by their tags; others are skipped."""
    view = memoryview(data)
    batches, position = decode_batches(view, position)
    tags: dict[int, int] = {}
    count, position = read_uvarint(view, position)
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        if size == _INT32.size:
            (tags[tag],) = _INT32.unpack_from(view, position)
        position += size
    if position != len(view):
        raise ValueError(f"the tagged fields end at byte {position} of {len(view)}")
    return batches, tags


def decode_batches(view: memoryview, position: int) -> tuple[list[StateBatch], int]:
    """Returns the batches at ``position``, and the position after them. Raises ValueError, DecodeError or struct.error
    for damaged bytes."""
    length, position = read_uvarint(view, position)
    end = position + (length - 1) * _BATCH.size
    if length == 0 or end > len(view):
        raise ValueError(f"{length - 1} state batches in a record of {len(view)} bytes")
    # If none of the bytes that would count tagged fields does, all batches have the same size.
    if any(view[position + _BATCH.size - 1 : end : _BATCH.size]):
        return _decode_long_batches(view, position, length - 1)
    batches = [
        StateBatch(first, last, _state(state), count)
        for first, last, state, count, _ in _BATCH.iter_unpack(view[position:end])
    ]
    return batches, end


def _decode_long_batches(view: memoryview, position: int, count: int) -> tuple[list[StateBatch], int]:
    batches = []
    data = bytes(view)
    for _ in range(count):
        tags_at = position + _BATCH.size - 1
        if data.startswith(_MORE_HEAD, tags_at):
            first, last, state, times, _, failures, not_before_ms, reason = _MORE.unpack_from(data, position)
            if reason not in REASONS:
                raise ValueError(f"reason {reason} of a state batch does not exist")
            batches.append(StateBatch(first, last, _state(state), times, failures, not_before_ms, REASONS[reason]))
            position += _MORE.size
        else:
            first, last, state, times, tagged_fields = _BATCH.unpack_from(data, position)
            batches.append(StateBatch(first, last, _state(state), times))
            position = skip_tagged_fields(view, tags_at) if tagged_fields else tags_at + 1
    return batches, position


def _state(number: int) -> DeliveryState:
    if (known := DELIVERY_STATES.get(number)) is None:
        raise ValueError(f"delivery state {number} does not exist")
    return known


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise ValueError(f"share state value of version {version}, expected {_VERSION}")
