"""A consumer group (KIP-848): its members, their target assignment, and the owners of partitions.

The state of the group follows from its epochs (``modern_group.py``): Assigning while the assignment epoch lags behind,
Reconciling while a member epoch does, Stable otherwise, and Empty without members.
"""

import uuid
from collections import Counter
from typing import Any, Self

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.modern_group import GroupLayouts, ModernGroup, count
from skep.coordination.groups.metadata_size import ENTRY_BYTES
from skep.coordination.groups.topic_patterns.topic_matches import TopicFilter, TopicMatches

FIRST_OFFSET_COMMIT_VERSION = 9
"""The first version of OffsetCommit for members of the consumer protocol: it has STALE_MEMBER_EPOCH."""


class ConsumerGroup(ModernGroup[ConsumerMember]):
    """Between calls ``static_ids``, ``owners`` and the counters agree with the members. No partition has two owners.

    Not in the log, besides what the base class has: ``matches`` is the matching of its expressions if it is under way.
    ``is_epoch_due``: members have left and the group has stayed in its epoch, because it is about to become a classic
    group (``large_downgrade``).
    """

    type_name = "consumer"
    protocol_type = "consumer"
    commits_offsets = True
    layouts = GroupLayouts(
        ConsumerGroupMetadataKey,
        ConsumerGroupMetadataValue,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_ids: dict[str, str] = {}
        self.regexes: dict[str, frozenset[str]] = {}
        """The topics that match each regular expression of a member. They are a part of ``metadata_bytes``."""
        self.owners: dict[uuid.UUID, dict[int, str]] = {}
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.classic_count = 0
        self.classic_protocol_counts: Counter[str] = Counter()
        self.matches: TopicMatches | None = None
        self.topic_filter: TopicFilter | None = None
        """Of the member that sent the last heartbeat. None: members may know of all topics."""
        self.is_epoch_due = False

    def copy(self) -> Self:
        twin = super().copy()
        twin.owners = {topic: owners.copy() for topic, owners in self.owners.items()}
        return twin

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = self.static_ids.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members.get(member_id)

    def subscribed_topics(self) -> set[str]:
        return super().subscribed_topics().union(*(self.regexes.get(regex, ()) for regex in self.regex_counts))

    def preferred_assignor(self, default: str) -> str:
        """Returns the assignor that most members name; among equals the first by name, as after a replay."""
        return min(self.assignor_counts, key=lambda name: (-self.assignor_counts[name], name), default=default)

    def is_free_for(self, member_id: str, topic_id: uuid.UUID, partition: int) -> bool:
        return self.owners.get(topic_id, {}).get(partition, member_id) == member_id

    # ``Group``.

    def check_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        *,
        is_transactional: bool,
        version: int,
    ) -> None:
        if generation_or_epoch < 0 and not self.members:
            return  # A tool, or a consumer without a group.
        if is_transactional and generation_or_epoch < 0 and not member_id and group_instance_id is None:
            return  # TxnOffsetCommit of a producer that does not name the member.
        member = self.member(member_id)
        if not is_transactional and not member.is_classic and version < FIRST_OFFSET_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"members of the consumer protocol need version {FIRST_OFFSET_COMMIT_VERSION} or above of OffsetCommit",
            )
        _check_epoch(member, generation_or_epoch)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return  # A tool, or a version of OffsetFetch without the member.
        _check_epoch(self.member(member_id or ""), member_epoch)

    def committed(self, member_id: str) -> None:
        """Does nothing: in this protocol only heartbeats renew a session."""

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.name_counts or any(topic in topics for topics in self.regexes.values())

    def can_read_subscriptions(self) -> bool:
        return True

    def offsets_expire_since(self, commit_timestamp: int) -> int | None:
        return commit_timestamp

    def other_keys(self) -> list[Any]:
        return [
            ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=regex)
            for regex in self.regexes
        ]

    # Replay.

    def replay_epoch(self, key: Any, value: Any) -> None:
        super().replay_epoch(key, value)
        self.is_epoch_due = False

    def _replay_regex(self, key: Any, value: Any) -> None:
        before = self.regexes.pop(key.regular_expression, frozenset())
        self.metadata_bytes -= ENTRY_BYTES * len(before)
        if value is not None:
            self.regexes[key.regular_expression] = frozenset(value.topics)
            self.metadata_bytes += ENTRY_BYTES * len(value.topics)

    def _replay_member(self, key: Any, value: Any) -> None:
        before = self.members.get(key.member_id)
        if value is not None:
            self._put(before, (before or ConsumerMember(key.member_id)).with_metadata(value))
        elif before is not None:
            del self.members[key.member_id]
            self._count(before, -1)
            self._release(before)

    def _replay_assignment(self, key: Any, value: Any) -> None:
        before = self.members.get(key.member_id)
        if before is not None or value is not None:
            # After a compaction this may come before the metadata of the member.
            after = (before or ConsumerMember(key.member_id)).with_assignment(value)
            self._put(before, after, is_counted=before is not None)

    def _put(self, before: ConsumerMember | None, after: ConsumerMember, *, is_counted: bool = False) -> None:
        """``is_counted``: the metadata of the member has not changed."""
        if before is not None:
            if not is_counted:
                self._count(before, -1)
            self._release(before)
        self.members[after.member_id] = after
        if not is_counted:
            self._count(after, 1)
        for held in (after.assigned, after.pending_revocation):
            for topic, epochs in held.items():
                self.owners.setdefault(topic, {}).update(dict.fromkeys(epochs, after.member_id))

    def _release(self, member: ConsumerMember) -> None:
        """Releases the partitions that the member still owns.

        Compaction can leave the record of a later owner before the one that is replayed.
        """
        for held in (member.assigned, member.pending_revocation):
            for topic, epochs in held.items():
                owners = self.owners.get(topic, {})
                for partition in epochs:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic, None)

    def _count(self, member: ConsumerMember, step: int) -> None:
        self.metadata_bytes += step * member.metadata_bytes
        count(self.name_counts, member.topic_names, step)
        count(self.regex_counts, (member.topic_regex,) if member.topic_regex else (), step)
        count(self.assignor_counts, (member.server_assignor,) if member.server_assignor else (), step)
        if member.classic is not None:
            self.classic_count += step
            count(self.classic_protocol_counts, (one.name for one in member.classic.supported_protocols), step)
        if member.instance_id is not None:
            if step > 0:
                self.static_ids[member.instance_id] = member.member_id
            elif self.static_ids.get(member.instance_id) == member.member_id:
                del self.static_ids[member.instance_id]


ConsumerGroup.replays = {
    ConsumerGroupMetadataKey: ConsumerGroup.replay_epoch,
    ConsumerGroupMemberMetadataKey: ConsumerGroup._replay_member,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup.replay_assignment_epoch,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup.replay_target,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._replay_assignment,
    ConsumerGroupRegularExpressionKey: ConsumerGroup._replay_regex,
}


def _check_epoch(member: ConsumerMember, epoch: int) -> None:
    if epoch != member.member_epoch:
        code = ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch
        raise KafkaError(code, f"The received epoch {epoch} does not match the expected {member.member_epoch}.")
