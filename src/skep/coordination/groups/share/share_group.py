"""A share group (KIP-932): its members, their target assignment, and the partitions that it has state of.

The group is Empty without members and Stable with them: unlike a consumer group it has no states in between.
"""

import uuid
from typing import Any, NoReturn

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from skep.coordination.groups.consumer.modern_group import GroupLayouts, ModernGroup, count
from skep.coordination.groups.metadata_size import ENTRY_BYTES
from skep.coordination.groups.share.share_member import ShareMember
from skep.coordination.groups.share.state_partitions import StatePartitions


class ShareGroup(ModernGroup[ShareMember]):
    """Between calls ``name_counts`` agrees with the members.

    Not in the log, besides what the base class has: ``may_lack_state`` is False when all partitions of the subscribed
    topics are known to be initialized. After a failure the next attempt to initialize some starts at
    ``initializable_at``, on the monotonic clock. ``new_topics`` are those whose first initialization is not complete.
    ``assigned_states`` are the ``states`` with which the last assignment was compared, and ``assigned_as`` is the
    value of ``skep.share.members``.
    """

    type_name = "share"
    protocol_type = "share"
    commits_offsets = False
    layouts = GroupLayouts(
        ShareGroupMetadataKey,
        ShareGroupMetadataValue,
        ShareGroupMemberMetadataKey,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupTargetAssignmentMetadataValue,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupTargetAssignmentMemberValue,
        ShareGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.states = StatePartitions()
        self.assigned_at_ms = 0
        """The time of the last assignment; 0: the next one need not wait for the assignment interval."""
        self.may_lack_state = True
        self.initializable_at = 0.0
        self.new_topics: frozenset[uuid.UUID] = frozenset()
        self.assigned_states: StatePartitions | None = None
        self.assigned_as: str | None = None

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    def other_keys(self) -> list[Any]:
        return [ShareGroupStatePartitionMetadataKey(group_id=self.group_id)]

    # ``Group``. A share group has no committed offsets.

    def check_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        *,
        is_transactional: bool,
        version: int,
    ) -> None:
        self._refuse_offsets()

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        self._refuse_offsets()

    def _refuse_offsets(self) -> NoReturn:
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {self.group_id} is not a consumer group.")

    def committed(self, member_id: str) -> None:
        """Never called: commits are refused."""

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.name_counts

    def can_read_subscriptions(self) -> bool:
        return True

    def offsets_expire_since(self, commit_timestamp: int) -> int | None:
        return commit_timestamp

    # Replay.

    def replay_assignment_epoch(self, key: Any, value: Any) -> None:
        super().replay_assignment_epoch(key, value)
        self.assigned_at_ms = 0 if value is None else value.assignment_timestamp

    def _replay_states(self, key: Any, value: Any) -> None:
        self.metadata_bytes -= _size(self.states)
        self.states = StatePartitions() if value is None else StatePartitions.of(value)
        self.metadata_bytes += _size(self.states)

    def _replay_member(self, key: Any, value: Any) -> None:
        before = self.members.pop(key.member_id, None)
        if before is not None:
            self._count(before, -1)
        if value is not None:
            member = self.members[key.member_id] = (before or ShareMember(key.member_id)).with_metadata(value)
            self._count(member, 1)

    def _replay_assignment(self, key: Any, value: Any) -> None:
        before = self.members.get(key.member_id)
        if before is not None:
            self.members[key.member_id] = before.with_assignment(value)
        elif value is not None:
            # After a compaction this may come before the metadata of the member.
            member = self.members[key.member_id] = ShareMember(key.member_id).with_assignment(value)
            self._count(member, 1)

    def _count(self, member: ShareMember, step: int) -> None:
        self.metadata_bytes += step * member.metadata_bytes
        count(self.name_counts, member.topic_names, step)


ShareGroup.replays = {
    ShareGroupMetadataKey: ShareGroup.replay_epoch,
    ShareGroupMemberMetadataKey: ShareGroup._replay_member,
    ShareGroupTargetAssignmentMetadataKey: ShareGroup.replay_assignment_epoch,
    ShareGroupTargetAssignmentMemberKey: ShareGroup.replay_target,
    ShareGroupCurrentMemberAssignmentKey: ShareGroup._replay_assignment,
    ShareGroupStatePartitionMetadataKey: ShareGroup._replay_states,
}


def _size(states: StatePartitions) -> int:
    return ENTRY_BYTES * (len(states.names) + sum(map(len, states.initialized.values())))
