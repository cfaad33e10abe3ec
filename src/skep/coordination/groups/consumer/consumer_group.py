"""A consumer group (KIP-848): its members, their target assignment, and the owners of partitions.

There are three epochs, each reached after the one before. The *group epoch* grows with every change of members,
subscriptions or topics. The *assignment epoch* is the group epoch that the target assignment was made for. The *member
epoch* is the assignment epoch that a member has reached. The state of the group follows from them: Assigning while the
assignment epoch lags behind, Reconciling while a member epoch does, Stable otherwise, and Empty without members.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.target_assignment import TargetAssignment
from skep.coordination.groups.group_memory import MemoryShare
from skep.coordination.groups.metadata_size import ENTRY_BYTES
from skep.coordination.groups.topic_patterns.topic_matches import TopicMatches
from skep.coordination.shard import CoordinatorRecord, Waiter
from skep.metadata.model import TopicRecord

FIRST_OFFSET_COMMIT_VERSION = 9
"""The first version of OffsetCommit for members of the consumer protocol: it has STALE_MEMBER_EPOCH."""


class ConsumerGroup:
    """Owns the members and assignments of one group. The logged part changes by ``replay`` alone.

    Between calls ``static_ids``, ``owners`` and the counters agree with the members, and no partition has two owners.

    Not in the log: ``seen_topics`` are the cluster's topics when the group was last compared with them. ``matches`` is
    the matching of its expressions if it is under way, and ``assigning`` an assignment that is under way. No assignment
    starts before ``assignable_at``, on the monotonic clock. ``is_epoch_due``: members have left and the group has
    stayed in its epoch, because it is about to become a classic group (``large_downgrade``).
    """

    type_name = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_ids: dict[str, str] = {}
        self.targets: dict[str, Partitions] = {}
        self.regexes: dict[str, frozenset[str]] = {}
        """The topics that match each regular expression of a member."""
        self.owners: dict[uuid.UUID, dict[int, str]] = {}
        self.name_counts: Counter[str] = Counter()
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.classic_count = 0
        self.classic_protocol_counts: Counter[str] = Counter()
        self.metadata_bytes = 0
        """The metadata of the members, and the topics that match their expressions."""
        self.memory = MemoryShare()
        self.seen_topics: Mapping[str, TopicRecord] | None = None
        self.matches: TopicMatches | None = None
        self.assigning: TargetAssignment | None = None
        self.assignable_at = 0.0
        self.is_epoch_due = False

    def copy(self) -> "ConsumerGroup":
        """Returns a copy that can be changed independently. Members and partition sets are immutable and shared."""
        twin = ConsumerGroup(self.group_id)
        for name, value in vars(self).items():
            setattr(twin, name, value.copy() if isinstance(value, dict) and name != "seen_topics" else value)
        twin.memory = MemoryShare()
        twin.owners = {topic: owners.copy() for topic, owners in self.owners.items()}
        return twin

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = self.static_ids.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members.get(member_id)

    def subscribed_topics(self) -> set[str]:
        """Returns the names of all topics that a member subscribes to, whether they exist or not."""
        return set(self.name_counts).union(*(self.regexes.get(regex, ()) for regex in self.regex_counts))

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

    def waiters(self) -> Sequence[Waiter]:
        """Empty: in this protocol no request waits."""
        return ()

    def tombstones(self) -> Sequence[CoordinatorRecord]:
        group_id = self.group_id
        keys = [key for member_id in self.members for key in member_keys(group_id, member_id)]
        return [*(CoordinatorRecord(key, None) for key in keys), *self.own_tombstones()]

    def own_tombstones(self) -> Sequence[CoordinatorRecord]:
        """Returns the tombstones of the group itself, which come after those of the members."""
        group_id = self.group_id
        keys: list[Any] = [ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)]
        keys += [ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=one) for one in self.regexes]
        keys.append(ConsumerGroupMetadataKey(group_id=group_id))
        return [CoordinatorRecord(key, None) for key in keys]

    # Replay.

    def replay(self, key: Any, value: Any) -> None:
        """Applies one record of this group, but not the tombstone of the group itself."""
        _REPLAYS[type(key)](self, key, value)
        self.memory.set(len(self.members), self.metadata_bytes)

    def _replay_epoch(self, key: Any, value: Any) -> None:
        self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        self.is_epoch_due = False

    def _replay_assignment_epoch(self, key: Any, value: Any) -> None:
        self.assignment_epoch = 0 if value is None else value.assignment_epoch

    def _replay_target(self, key: Any, value: Any) -> None:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            self.targets[key.member_id] = {
                topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
            }

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
        _add(self.name_counts, member.topic_names, step)
        _add(self.regex_counts, (member.topic_regex,) if member.topic_regex else (), step)
        _add(self.assignor_counts, (member.server_assignor,) if member.server_assignor else (), step)
        if member.classic is not None:
            self.classic_count += step
            _add(self.classic_protocol_counts, (one.name for one in member.classic.supported_protocols), step)
        if member.instance_id is not None:
            if step > 0:
                self.static_ids[member.instance_id] = member.member_id
            elif self.static_ids.get(member.instance_id) == member.member_id:
                del self.static_ids[member.instance_id]


_REPLAYS = {
    ConsumerGroupMetadataKey: ConsumerGroup._replay_epoch,
    ConsumerGroupMemberMetadataKey: ConsumerGroup._replay_member,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._replay_assignment_epoch,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._replay_target,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._replay_assignment,
    ConsumerGroupRegularExpressionKey: ConsumerGroup._replay_regex,
}


def member_keys(group_id: str, member_id: str) -> list[Any]:
    """Returns the keys of all records of a member in the order of their deletion: the metadata comes last."""
    return [
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
    ]


def _check_epoch(member: ConsumerMember, epoch: int) -> None:
    if epoch != member.member_epoch:
        code = ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch
        raise KafkaError(code, f"The received epoch {epoch} does not match the expected {member.member_epoch}.")


def _add(counts: Counter[str], names: Iterable[str], step: int) -> None:
    for name in names:
        counts[name] += step
        if not counts[name]:
            del counts[name]
