"""A member of a consumer group (KIP-848): its subscription, its epoch and assignment, and the records of both.

A member is immutable; a change makes another object. Its epoch is that of the assignment that it has reached. Its state
is one of these:

========================  =======================================================================================
STABLE                    it has got all partitions of its epoch
UNREVOKED_PARTITIONS      it has to revoke partitions, and has not confirmed it yet
UNRELEASED_PARTITIONS     it waits for partitions that other members have not revoked yet
UNKNOWN                   a number in the log that this version of Skep does not know
========================  =======================================================================================
"""

import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from skep.coordination.group_records import (
    NOT_CLASSIC,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.metadata_size import protocols_bytes, text_bytes, topics_bytes
from skep.coordination.shard import CoordinatorRecord

Held = Mapping[uuid.UUID, Mapping[int, int]]
"""Partitions that a member holds, each with the epoch since which it holds it. No topic is empty."""

NOTHING: Held = MappingProxyType({})

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2


class MemberState(enum.IntEnum):
    """The numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def of_number(cls, number: int) -> "MemberState":
        return cls(number) if number in (0, 1, 2) else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """``pending_revocation`` are partitions that it has to revoke and still holds."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """What it sent in JoinGroup, if it uses the classic protocol."""
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Held = field(default_factory=lambda: NOTHING)
    pending_revocation: Held = field(default_factory=lambda: NOTHING)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    @property
    def metadata_bytes(self) -> int:
        """The size of what it sent."""
        size = text_bytes(
            self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host, self.topic_regex
        )
        if self.classic is not None:
            size += protocols_bytes((one.name, one.metadata) for one in self.classic.supported_protocols)
        return size + topics_bytes(self.topic_names)

    def at_epoch(self, member_epoch: int, state: MemberState, assigned: Held, pending: Held) -> "ConsumerMember":
        """Returns the member with these values. It keeps its previous epoch, which it sends if the response is lost."""
        is_new = member_epoch != self.member_epoch
        return replace(
            self,
            member_epoch=member_epoch,
            previous_member_epoch=self.member_epoch if is_new else self.previous_member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending,
        )

    # Records.

    def metadata_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id),
            ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=tuple(sorted(self.topic_names)),
                subscribed_topic_regex=self.topic_regex,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                server_assignor=self.server_assignor,
                classic_member_metadata=self.classic or NOT_CLASSIC,
            ),
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerMember":
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topic_names=frozenset(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex or "",
            server_assignor=value.server_assignor,
            classic=classic if classic.is_present == 1 else None,
        )

    def assignment_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=self.member_epoch,
                previous_member_epoch=self.previous_member_epoch,
                state=self.state.value,
                assigned_partitions=_recorded(self.assigned),
                partitions_pending_revocation=_recorded(self.pending_revocation),
            ),
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> "ConsumerMember":
        """Returns the member with the values of the record. The tombstone, None, comes before its removal."""
        if value is None:
            return replace(
                self,
                member_epoch=LEAVING_EPOCH,
                previous_member_epoch=LEAVING_EPOCH,
                state=MemberState.STABLE,
                assigned=NOTHING,
                pending_revocation=NOTHING,
            )
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState.of_number(value.state),
            assigned=_held(value.assigned_partitions, value.member_epoch),
            pending_revocation=_held(value.partitions_pending_revocation, value.member_epoch),
        )


def _recorded(held: Held) -> tuple[CurrentTopicPartitions, ...]:
    return tuple(
        CurrentTopicPartitions(
            topic_id=topic,
            partitions=tuple(sorted(epochs)),
            assignment_epochs=tuple(epochs[partition] for partition in sorted(epochs)),
        )
        for topic, epochs in sorted(held.items())
    )


def _held(topics: Iterable[CurrentTopicPartitions], member_epoch: int) -> Held:
    """Records of older versions have no epochs of partitions: then it is the member's epoch."""
    return {
        topic.topic_id: dict(
            zip(topic.partitions, topic.assignment_epochs or (member_epoch,) * len(topic.partitions), strict=False)
        )
        for topic in topics
    }


def held_since(partitions: Partitions, epoch: int) -> Held:
    return {topic: dict.fromkeys(numbers, epoch) for topic, numbers in partitions.items()}


def shown(partitions: Mapping[uuid.UUID, Iterable[int]]) -> list[dict[str, Any]]:
    """Returns partitions as in the bodies of heartbeats and descriptions."""
    return [{"topic_id": topic, "partitions": sorted(numbers)} for topic, numbers in sorted(partitions.items())]
