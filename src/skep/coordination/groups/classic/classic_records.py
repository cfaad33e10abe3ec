"""The GroupMetadata record of a classic group.

One record has the whole group: Stable with all members and their assignments, or Empty.
"""

from collections.abc import Iterable, Mapping, Sequence

from skep.base.loop.slicer import Work
from skep.coordination.group_records import GroupMemberValue, GroupMetadataKey, GroupMetadataValue
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import CoordinatorRecord
from skep.wire.primitives import INT32

_VERSION_BYTES = 2


def stable_record(
    group: ClassicGroup,
    members: Iterable[ClassicMember],
    leader_id: str | None,
    assignments: Mapping[str, bytes],
    now_ms: int,
) -> CoordinatorRecord:
    """Returns the record of the group in its current generation, with these members and their assignments."""
    values = tuple(
        _member_value(member, group.protocol_name, assignments.get(member.member_id, b"")) for member in members
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), _stable_value(group, leader_id, values, now_ms))


def encoded_in_slices(
    group: ClassicGroup,
    members: Iterable[ClassicMember],
    leader_id: str | None,
    assignments: Mapping[str, bytes],
    now_ms: int,
) -> Work[tuple[bytes, bytes]]:
    """Encodes the key and the value of ``stable_record`` in slices."""
    encoded = []
    for member in members:
        encoded.append(encoded_member(member, group.protocol_name, assignments.get(member.member_id, b"")))
        yield
    return encoded_stable_record(group, leader_id, encoded, now_ms)


def encoded_member(member: ClassicMember, protocol_name: str | None, assignment: bytes) -> bytes:
    """Encodes the part of one member in the value of ``stable_record``."""
    return _member_value(member, protocol_name, assignment).encode()[_VERSION_BYTES:]


def encoded_stable_record(
    group: ClassicGroup, leader_id: str | None, members: Sequence[bytes], now_ms: int
) -> tuple[bytes, bytes]:
    """Encodes the key and the value of ``stable_record`` from the encoded members."""
    without_members = _stable_value(group, leader_id, (), now_ms).encode()
    # The members are the last field: their number, which is 0 here, and then the members.
    value = b"".join((without_members[: -INT32.size], INT32.pack(len(members)), *members))
    return GroupMetadataKey(group=group.group_id).encode(), value


def _member_value(member: ClassicMember, protocol_name: str | None, assignment: bytes) -> GroupMemberValue:
    return GroupMemberValue(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol_name),
        assignment=assignment,
    )


def _stable_value(
    group: ClassicGroup, leader_id: str | None, members: tuple[GroupMemberValue, ...], now_ms: int
) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=leader_id,
        current_state_timestamp=now_ms,
        members=members,
    )


def empty_record(group: ClassicGroup, now_ms: int) -> CoordinatorRecord:
    """Returns the record of the group without members, in a new generation, so that no earlier member is in it."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id + 1,
        current_state_timestamp=now_ms,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def is_in_use(table: GroupTable, group: ClassicGroup) -> bool:
    """Whether the log has the group or its offsets: otherwise it can be dropped without a record."""
    offsets = table.offsets
    return group.is_logged or offsets.has_offsets(group.group_id) or offsets.has_pending(group.group_id)
