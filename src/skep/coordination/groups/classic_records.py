"""The GroupMetadata record of a classic group: what is written of it, and how it is read back into a group.

One record holds the whole group at rest: Stable with all members and their assignments, or Empty.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from skep.base.slicer import Work, run_at_once
from skep.coordination.group_records import GroupMemberValue, GroupMetadataKey, GroupMetadataValue
from skep.coordination.groups.classic_group import ClassicGroup
from skep.coordination.groups.classic_member import ClassicMember
from skep.coordination.shard import CoordinatorRecord

if TYPE_CHECKING:
    from skep.coordination.groups.shard import GroupShard


def stable_record(
    group: ClassicGroup,
    members: Iterable[ClassicMember],
    leader_id: str | None,
    assignments: Mapping[str, bytes],
    now_ms: int,
) -> CoordinatorRecord:
    """The group with these members and their assignments, in the generation that it has."""
    key, value = run_at_once(stable_record_in_slices(group, members, leader_id, assignments, now_ms))
    return CoordinatorRecord(key, value)


def stable_record_in_slices(
    group: ClassicGroup,
    members: Iterable[ClassicMember],
    leader_id: str | None,
    assignments: Mapping[str, bytes],
    now_ms: int,
) -> Work[tuple[GroupMetadataKey, GroupMetadataValue]]:
    values = []
    for member in members:
        values.append(
            GroupMemberValue(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=assignments.get(member.member_id, b""),
            )
        )
        yield
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=leader_id,
        current_state_timestamp=now_ms,
        members=tuple(values),
    )
    return GroupMetadataKey(group=group.group_id), value


def empty_record(group: ClassicGroup, now_ms: int) -> CoordinatorRecord:
    """The group after its last member; a generation that nobody is in, so that no member of before can be in it."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id + 1,
        current_state_timestamp=now_ms,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def is_in_use(shard: "GroupShard", group: ClassicGroup) -> bool:
    """Whether a restart would know of the group: otherwise it can be forgotten without a word in the log."""
    offsets = shard.offsets
    return group.is_logged or offsets.has_offsets(group.group_id) or offsets.has_pending(group.group_id)
