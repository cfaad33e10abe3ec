"""A member of a share group (KIP-932): its subscription, its epoch and assignment, and the records of both.

A member has a new assignment at once. Unlike a member of a consumer group it need not wait until others have revoked
partitions, because a partition may have several members.
"""

from dataclasses import dataclass, field, replace

from skep.coordination.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.consumer.consumer_member import LEAVING_EPOCH, MemberState
from skep.coordination.groups.consumer.consumer_subscriptions import NOTHING_ASSIGNED
from skep.coordination.groups.consumer.modern_group import partitions_of, recorded
from skep.coordination.groups.metadata_size import text_bytes, topics_bytes
from skep.coordination.shard import CoordinatorRecord


@dataclass(frozen=True, slots=True)
class ShareMember:
    """``joined_epoch`` is the group epoch that began when it joined: members came in the order of these epochs."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    joined_epoch: int = 0
    member_epoch: int = 0
    previous_member_epoch: int = -1
    assigned: Partitions = field(default_factory=lambda: NOTHING_ASSIGNED)

    @property
    def metadata_bytes(self) -> int:
        """The size of what it sent."""
        return text_bytes(self.member_id, self.rack_id, self.client_id, self.client_host) + topics_bytes(
            self.topic_names
        )

    def at_epoch(self, member_epoch: int, assigned: Partitions) -> "ShareMember":
        """Returns the member with these values. It keeps its previous epoch, which it sends if the response is lost."""
        is_new = member_epoch != self.member_epoch
        return replace(
            self,
            member_epoch=member_epoch,
            previous_member_epoch=self.member_epoch if is_new else self.previous_member_epoch,
            assigned=assigned,
        )

    # Records.

    def metadata_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ShareGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id),
            ShareGroupMemberMetadataValue(
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=tuple(sorted(self.topic_names)),
                joined_epoch=self.joined_epoch,
            ),
        )

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> "ShareMember":
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
            joined_epoch=value.joined_epoch,
        )

    def assignment_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id),
            ShareGroupCurrentMemberAssignmentValue(
                member_epoch=self.member_epoch,
                previous_member_epoch=self.previous_member_epoch,
                state=MemberState.STABLE.value,
                assigned_partitions=recorded(self.assigned),
            ),
        )

    def with_assignment(self, value: ShareGroupCurrentMemberAssignmentValue | None) -> "ShareMember":
        """Returns the member with the values of the record. The tombstone, None, comes before its removal."""
        if value is None:
            return replace(
                self, member_epoch=LEAVING_EPOCH, previous_member_epoch=LEAVING_EPOCH, assigned=NOTHING_ASSIGNED
            )
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            assigned=partitions_of(value.assigned_partitions),
        )
