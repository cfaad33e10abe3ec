"""The records of ``__share_group_state`` in Kafka's layout (its ``share-coordinator/.../message/*.json``).

A share partition has a snapshot, which is its whole state, and after it updates with what has changed. A snapshot
without a value is a tombstone. A state may have thousands of batches, so the layout is written with ``struct``.
"""

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from skep.base.errors import DecodeError
from skep.coordination import schema
from skep.coordination.share.share_state import DELIVERY_STATES, UNINITIALIZED, SharePartitionKey, StateBatch
from skep.wire.primitives import read_uvarint, uvarint

_KEY_START = struct.Struct(">hh")
_KEY_END = struct.Struct(">16si")
_SNAPSHOT = struct.Struct(">hiiiqqq")
_UPDATE = struct.Struct(">hiiq")
_BATCH = struct.Struct(">qqbhB")
"""A state batch; the last byte is the number of its tagged fields."""
_COUNT = struct.Struct(">BBBi")
"""The tagged fields of a value: one of them, tag 0, of four bytes, the delivery complete count."""
_INT32 = struct.Struct(">i")
_VERSION = 0


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
        return start + _encode_rest(self.batches, self.delivery_complete_count)


class ShareUpdateValue(NamedTuple):
    """What has changed since the record before. ``snapshot_epoch`` is that of the last snapshot."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch] = ()

    def encode(self) -> bytes:
        start = _UPDATE.pack(_VERSION, self.snapshot_epoch, self.leader_epoch, self.start_offset)
        return start + _encode_rest(self.batches, self.delivery_complete_count)


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


def _encode_rest(batches: Sequence[StateBatch], complete_count: int) -> bytes:
    parts = [uvarint(len(batches) + 1)]
    parts += [_BATCH.pack(first, last, state, count, 0) for first, last, state, count in batches]
    # Kafka leaves out a tagged field that has its default.
    parts.append(b"\0" if complete_count == UNINITIALIZED else _COUNT.pack(1, 0, _INT32.size, complete_count))
    return b"".join(parts)


def _decode_snapshot(data: bytes) -> ShareSnapshotValue:
    version, snapshot_epoch, state_epoch, leader_epoch, start_offset, created, written = _SNAPSHOT.unpack_from(data)
    _check_version(version)
    batches, complete_count = _decode_rest(data, _SNAPSHOT.size)
    return ShareSnapshotValue(
        snapshot_epoch, state_epoch, leader_epoch, start_offset, complete_count, created, written, batches
    )


def _decode_update(data: bytes) -> ShareUpdateValue:
    version, snapshot_epoch, leader_epoch, start_offset = _UPDATE.unpack_from(data)
    _check_version(version)
    batches, complete_count = _decode_rest(data, _UPDATE.size)
    return ShareUpdateValue(snapshot_epoch, leader_epoch, start_offset, complete_count, batches)


def _decode_rest(data: bytes, position: int) -> tuple[list[StateBatch], int]:
    """Returns the batches, and the complete count from the tagged fields; unknown fields are skipped."""
    view = memoryview(data)
    length, position = read_uvarint(view, position)
    end = position + (length - 1) * _BATCH.size
    if length == 0 or end > len(data):
        raise ValueError(f"{length - 1} state batches in a record of {len(data)} bytes")
    batches = []
    for first, last, state, count, tagged_fields in _BATCH.iter_unpack(view[position:end]):
        if tagged_fields:
            raise ValueError("a state batch with tagged fields, which this version does not know")
        if (known := DELIVERY_STATES.get(state)) is None:
            raise ValueError(f"delivery state {state} does not exist")
        batches.append(StateBatch(first, last, known, count))
    return batches, _decode_complete_count(view, end)


def _decode_complete_count(view: memoryview, position: int) -> int:
    complete_count = UNINITIALIZED
    fields, position = read_uvarint(view, position)
    for _ in range(fields):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        if tag == 0 and size == _INT32.size:
            (complete_count,) = _INT32.unpack_from(view, position)
        position += size
    if position != len(view):
        raise ValueError(f"the tagged fields end at byte {position} of {len(view)}")
    return complete_count


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise ValueError(f"share state value of version {version}, expected {_VERSION}")
