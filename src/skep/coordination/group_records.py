"""The records of ``__consumer_offsets`` in Kafka's layout (its ``group-coordinator/.../message/*.json``).

Offsets are by far the most frequent records, so their layout is written with ``struct``; the others use kio.

Left out: records of streams groups, and the partition metadata that Kafka wrote before 4.1. A replay skips them.
"""

import functools
import struct
import uuid
from typing import Any, NamedTuple

from skep.coordination import schema
from skep.coordination.schema import Layout, bytes_, int8, int32, int64, layout, nested, string, uuid_

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_WITHOUT_METADATA = struct.Struct(">hqihq")


# Offsets. Kind 1; kind 0 is Kafka's older number for the same key.


class OffsetCommitKey(NamedTuple):
    group: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        return _offset_key_start(self.group, self.topic) + _INT32.pack(self.partition)


@functools.lru_cache(4096)
def _offset_key_start(group: str, topic: str) -> bytes:
    encoded_group, encoded_topic = group.encode(), topic.encode()
    return b"".join(
        (b"\x00\x01", _INT16.pack(len(encoded_group)), encoded_group, _INT16.pack(len(encoded_topic)), encoded_topic)
    )


class OffsetCommitValue(NamedTuple):
    """Version 3. ``leader_epoch`` is -1 when the client did not send it."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int

    def encode(self) -> bytes:
        if not self.metadata:
            return _WITHOUT_METADATA.pack(3, self.offset, self.leader_epoch, 0, self.commit_timestamp)
        metadata = self.metadata.encode()
        size = len(metadata)
        return struct.pack(f">hqih{size}sq", 3, self.offset, self.leader_epoch, size, metadata, self.commit_timestamp)


def _decode_offset_key(data: bytes) -> OffsetCommitKey:
    group, position = _read_string(data, 2)
    topic, position = _read_string(data, position)
    return OffsetCommitKey(group, topic, _INT32.unpack_from(data, position)[0])


def _decode_offset_value(data: bytes) -> OffsetCommitValue:
    version = schema.leading_number(data)
    if version == 3:
        offset, leader_epoch = struct.unpack_from(">qi", data, 2)
        metadata, position = _read_string(data, 14)
    elif 0 <= version < 3:
        (offset,), leader_epoch = struct.unpack_from(">q", data, 2), -1
        metadata, position = _read_string(data, 10)
    else:
        value = schema.decode(_OffsetCommitValue4, data)
        return OffsetCommitValue(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp)
    return OffsetCommitValue(offset, leader_epoch, metadata, struct.unpack_from(">q", data, position)[0])


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(data, position)
    end = position + 2 + length
    if length < 0 or end > len(data):
        raise ValueError(f"a string of {length} bytes in a record of {len(data)}")
    return data[position + 2 : end].decode(), end


@layout(version=4, flexible=True)
class _OffsetCommitValue4(Layout):
    offset: int = int64()
    leader_epoch: int = int32(default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    topic_id: uuid.UUID | None = uuid_(default=None, tag=0)


# Classic groups. Kind 2.


@layout(kind=2)
class GroupMetadataKey(Layout):
    group: str = string()


@layout(version=3)
class GroupMemberValue(Layout):
    member_id: str = string()
    group_instance_id: str | None = string(default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(default=-1)
    session_timeout: int = int32()
    subscription: bytes = bytes_()
    assignment: bytes = bytes_()


@layout(version=3)
class GroupMetadataValue(Layout):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(default=None)
    leader: str | None = string(default=None)
    current_state_timestamp: int = int64(default=-1)
    members: tuple[GroupMemberValue, ...] = nested(default=())


# Consumer groups (KIP-848). Kinds 3, 5 to 8 and 16.


@layout(kind=3)
class ConsumerGroupMetadataKey(Layout):
    group_id: str = string()


@layout(flexible=True)
class ConsumerGroupMetadataValue(Layout):
    epoch: int = int32()
    metadata_hash: int = int64(default=0, tag=0)


@layout(kind=5)
class ConsumerGroupMemberMetadataKey(Layout):
    group_id: str = string()
    member_id: str = string()


@layout(flexible=True)
class ClassicProtocol(Layout):
    name: str = string()
    metadata: bytes = bytes_()


@layout(flexible=True)
class ClassicMemberMetadata(Layout):
    """What a member that uses the classic protocol brings into a consumer group; ``is_present`` 0 means none."""

    is_present: int = int8(default=1)
    session_timeout_ms: int = int32()
    supported_protocols: tuple[ClassicProtocol, ...] = nested()


NOT_CLASSIC = ClassicMemberMetadata(is_present=0, session_timeout_ms=0, supported_protocols=())


@layout(flexible=True)
class ConsumerGroupMemberMetadataValue(Layout):
    instance_id: str | None = string(default=None)
    rack_id: str | None = string(default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: tuple[str, ...] = string(default=())
    subscribed_topic_regex: str | None = string(default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(default=None)
    classic_member_metadata: ClassicMemberMetadata = nested(default=NOT_CLASSIC, tag=0)


@layout(kind=6)
class ConsumerGroupTargetAssignmentMetadataKey(Layout):
    group_id: str = string()


@layout(flexible=True)
class ConsumerGroupTargetAssignmentMetadataValue(Layout):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(default=0, tag=0)


@layout(kind=7)
class ConsumerGroupTargetAssignmentMemberKey(Layout):
    group_id: str = string()
    member_id: str = string()


@layout(flexible=True)
class TargetTopicPartitions(Layout):
    topic_id: uuid.UUID = uuid_()
    partitions: tuple[int, ...] = int32(default=())


@layout(flexible=True)
class ConsumerGroupTargetAssignmentMemberValue(Layout):
    topic_partitions: tuple[TargetTopicPartitions, ...] = nested(default=())


@layout(kind=8)
class ConsumerGroupCurrentMemberAssignmentKey(Layout):
    group_id: str = string()
    member_id: str = string()


@layout(flexible=True)
class CurrentTopicPartitions(Layout):
    """``assignment_epochs``, if present, has one epoch per partition: the one since which it is assigned."""

    topic_id: uuid.UUID = uuid_()
    partitions: tuple[int, ...] = int32(default=())
    assignment_epochs: tuple[int, ...] = int32(default=(), tag=0)


@layout(flexible=True)
class ConsumerGroupCurrentMemberAssignmentValue(Layout):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = nested(default=())
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = nested(default=())


@layout(kind=16)
class ConsumerGroupRegularExpressionKey(Layout):
    group_id: str = string()
    regular_expression: str = string()


@layout(flexible=True)
class ConsumerGroupRegularExpressionValue(Layout):
    topics: tuple[str, ...] = string(default=())
    version: int = int64()
    timestamp: int = int64()


# Share groups (KIP-932). Kinds 10 to 15.


@layout(kind=10)
class ShareGroupMemberMetadataKey(Layout):
    group_id: str = string()
    member_id: str = string()


@layout(flexible=True)
class ShareGroupMemberMetadataValue(Layout):
    """``joined_epoch`` is not Kafka's, whose tools skip it: the group epoch that began when the member joined."""

    rack_id: str | None = string(default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: tuple[str, ...] = string(default=())
    joined_epoch: int = int32(default=0, tag=8100)


@layout(kind=11)
class ShareGroupMetadataKey(Layout):
    group_id: str = string()


@layout(flexible=True)
class ShareGroupMetadataValue(Layout):
    epoch: int = int32()
    metadata_hash: int = int64()


@layout(kind=12)
class ShareGroupTargetAssignmentMetadataKey(Layout):
    group_id: str = string()


@layout(flexible=True)
class ShareGroupTargetAssignmentMetadataValue(Layout):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(default=0, tag=0)


@layout(kind=13)
class ShareGroupTargetAssignmentMemberKey(Layout):
    group_id: str = string()
    member_id: str = string()


@layout(flexible=True)
class ShareGroupTargetAssignmentMemberValue(Layout):
    topic_partitions: tuple[TargetTopicPartitions, ...] = nested(default=())


@layout(kind=14)
class ShareGroupCurrentMemberAssignmentKey(Layout):
    group_id: str = string()
    member_id: str = string()


@layout(flexible=True)
class ShareGroupCurrentMemberAssignmentValue(Layout):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: tuple[TargetTopicPartitions, ...] = nested(default=())


@layout(kind=15)
class ShareGroupStatePartitionMetadataKey(Layout):
    group_id: str = string()


@layout(flexible=True)
class StateTopicPartitions(Layout):
    topic_id: uuid.UUID = uuid_()
    topic_name: str = string()
    partitions: tuple[int, ...] = int32(default=())


@layout(flexible=True)
class StateTopic(Layout):
    topic_id: uuid.UUID = uuid_()
    topic_name: str = string()


@layout(flexible=True)
class ShareGroupStatePartitionMetadataValue(Layout):
    initializing_topics: tuple[StateTopicPartitions, ...] = nested(default=())
    initialized_topics: tuple[StateTopicPartitions, ...] = nested(default=())
    deleting_topics: tuple[StateTopic, ...] = nested(default=())


_KINDS: dict[int, tuple[Any, Any]] = {
    cls.kind: (cls, value)
    for cls, value in (
        (GroupMetadataKey, GroupMetadataValue),
        (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
        (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
        (ShareGroupMetadataKey, ShareGroupMetadataValue),
        (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
        (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
        (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
        (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
    )
}


def decode_group_record(key: bytes, value: bytes | None) -> tuple[Any, Any] | None:
    """Returns a key and its value (None for a tombstone), or None for an unknown kind. Raises ValueError for damaged
    bytes."""
    kind = schema.leading_number(key)
    try:
        if kind in (0, 1):
            return _decode_offset_key(key), None if value is None else _decode_offset_value(value)
        if (classes := _KINDS.get(kind)) is None:
            return None
        key_class, value_class = classes
        return schema.decode(key_class, key), None if value is None else schema.decode(value_class, value)
    except struct.error as error:
        raise ValueError(f"a record of kind {kind}: {error}") from None
