"""The change of a consumer group by one operation: the records so far, and the group after them.

An operation changes a group only by records, and each decision depends on the one before: a join leads to an epoch,
that to an assignment, that to the member's partitions. So the records are also replayed into a copy of the group, which
is made for the first record; most heartbeats have none.
"""

from collections.abc import Mapping

from skep.base.clock import Clock
from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.errors import ErrorCode
from skep.base.loop.slicer import run_at_once
from skep.coordination.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
)
from skep.coordination.groups.assignors import range as range_assignor
from skep.coordination.groups.assignors import uniform
from skep.coordination.groups.assignors.spec import Assignor, Partitions
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup, member_keys
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.consumer_subscriptions import (
    NOTHING_ASSIGNED,
    metadata_hash,
    subscribers_of,
    topic_ids_of,
)
from skep.coordination.groups.consumer.reconciliation import ReconcileInputs, reconcile
from skep.coordination.groups.consumer.target_assignment import TargetAssignment, is_small
from skep.coordination.groups.group_memory import MEMBER_BYTES, check_memory
from skep.coordination.groups.metadata_size import has_room, too_large
from skep.coordination.groups.topic_patterns.topic_matches import TopicMatches, Topics
from skep.coordination.groups.topic_patterns.topic_pattern import topic_pattern
from skep.coordination.shard import CoordinatorRecord

ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform.assign, "range": range_assignor.assign}

ASSIGNMENT_PAUSE = 20
"""After an assignment the next one waits this many times as long as it took. If many members join a large group at
once, an assignment for each of them would take quadratic time. In a small group the pause is not noticeable."""


class GroupChange:
    """``group`` is the group after ``records``; ``topics`` are those of the cluster."""

    def __init__(self, group: ConsumerGroup, topics: Topics, clock: Clock) -> None:
        self.group = group
        self.topics = topics
        self.records: list[CoordinatorRecord] = []
        self._clock = clock
        self._is_copy = False
        self._assignable_at = group.assignable_at
        self._matches = group.matches
        self._assigning = group.assigning

    def write(self, record: CoordinatorRecord) -> None:
        if not self._is_copy:
            self.group, self._is_copy = self.group.copy(), True
        self.group.replay(record.key, record.value)
        self.records.append(record)

    def remember(self, group: ConsumerGroup) -> None:
        """Copies what is not in the log to the group, once the records are written."""
        group.assignable_at = self._assignable_at
        group.matches, group.assigning = self._matches, self._assigning
        if self._matches is None:
            group.seen_topics = self.topics

    @property
    def is_unfinished(self) -> bool:
        """Whether topics are still being matched, or partitions assigned, after this change."""
        return self._matches is not None or self._assigning is not None

    # Members.

    def check_room(self, updated: ConsumerMember, settings: CoordinatorConfig, used_bytes: int) -> None:
        """Raises GROUP_MAX_SIZE_REACHED if the metadata of the member, present or new, is too large.

        The limits are those of the group and of the broker, whose groups take ``used_bytes``.
        """
        member = self.group.members.get(updated.member_id)
        before, after = member.metadata_bytes if member is not None else 0, updated.metadata_bytes
        if not has_room(settings, self.group.metadata_bytes, before, after):
            raise too_large(settings)
        if after > before:
            check_memory(settings, used_bytes, MEMBER_BYTES + after - before, ErrorCode.group_max_size_reached)

    def remove_member(self, member_id: str) -> None:
        for key in member_keys(self.group.group_id, member_id):
            self.write(CoordinatorRecord(key, None))

    def members_have_left(self) -> None:
        """Starts a new epoch after members have left. A group without members is assigned at once."""
        self._drop_unused_regexes()
        self.bump_epoch(always=True)
        if self.group.is_empty:
            self.write(assignment_epoch_record(self.group.group_id, self.group.group_epoch, 0))

    def replace_member(self, member: ConsumerMember, successor: ConsumerMember) -> None:
        """Replaces a static member by its successor, which has the same assignment and another id."""
        target = self.group.targets.get(member.member_id, NOTHING_ASSIGNED)
        self.remove_member(member.member_id)
        self.write(successor.metadata_record(self.group.group_id))
        self.write(target_record(self.group.group_id, successor.member_id, target))
        self.write(successor.assignment_record(self.group.group_id))

    def update_member(self, member: ConsumerMember, updated: ConsumerMember, default_assignor: str) -> bool:
        """Adds or updates a member, and assigns if needed. Returns whether its subscription has changed.

        ``member`` is in the group already, or new.
        """
        if updated.topic_regex:
            topic_pattern(updated.topic_regex).check()
        assignor = self.group.preferred_assignor(default_assignor)
        is_new = member.member_id not in self.group.members
        if is_new or updated is not member:
            self.write(updated.metadata_record(self.group.group_id))
        has_changed = (updated.topic_names, updated.topic_regex) != (member.topic_names, member.topic_regex)
        are_topics_new = self.group.seen_topics is not self.topics
        is_bump_due = is_new or has_changed
        if is_bump_due or are_topics_new:
            is_bump_due |= self.resolve_regexes()
        is_bump_due |= self.group.preferred_assignor(default_assignor) != assignor
        if is_bump_due or are_topics_new:
            self.bump_epoch(always=is_bump_due)
        self.assign(default_assignor)
        return has_changed

    # Subscriptions.

    def resolve_regexes(self) -> bool:
        """Updates the topics of all expressions, or starts to. Returns whether any have changed.

        Raises INVALID_REGULAR_EXPRESSION for a new expression that is not valid.
        """
        self._drop_unused_regexes()
        group, under_way = self.group, self._matches
        matches = under_way or TopicMatches(self.topics, group.seen_topics)
        for regex in group.regex_counts:
            before = group.regexes.get(regex)
            if before is None or group.seen_topics is not self.topics:
                topic_pattern(regex)  # raises if it is not valid
                matches.add(regex, before)
        if under_way is None:
            matches.go_on()
        self._matches = None if matches.is_done else matches
        return matches.is_done and self._write_matches(matches.found)

    def _write_matches(self, found: Mapping[str, frozenset[str]]) -> bool:
        has_changed = False
        for regex, topics in found.items():
            if regex in self.group.regex_counts and self.group.regexes.get(regex) != topics:
                self._write_regex(regex, topics)
                has_changed = True
        return has_changed

    def _drop_unused_regexes(self) -> None:
        for regex in [regex for regex in self.group.regexes if regex not in self.group.regex_counts]:
            self._write_regex(regex, None)

    def _write_regex(self, regex: str, topics: frozenset[str] | None) -> None:
        key = ConsumerGroupRegularExpressionKey(group_id=self.group.group_id, regular_expression=regex)
        value = None
        if topics is not None:
            value = ConsumerGroupRegularExpressionValue(
                topics=tuple(sorted(topics)), version=0, timestamp=self._clock.now_ms()
            )
        self.write(CoordinatorRecord(key, value))

    # Epochs.

    def bump_epoch(self, *, always: bool) -> None:
        """Starts a new group epoch; unless ``always``, only if the subscribed topics have changed."""
        group = self.group
        current = metadata_hash(group.subscribed_topics(), self.topics)
        if always or current != group.metadata_hash:
            self.write(
                CoordinatorRecord(
                    ConsumerGroupMetadataKey(group_id=group.group_id),
                    ConsumerGroupMetadataValue(epoch=group.group_epoch + 1, metadata_hash=current),
                )
            )

    def assign(self, default_assignor: str) -> None:
        """Makes a new target assignment if the group epoch is new and the last assignment is long enough ago.

        The assignment of a large group is only started here; ``assignment_task`` computes and writes it.
        """
        group, began = self.group, self._clock.monotonic()
        if group.assignment_epoch >= group.group_epoch or began < group.assignable_at or self._assigning is not None:
            return
        subscribers, counts = subscribers_of(group, self.topics)
        assignor = ASSIGNORS[group.preferred_assignor(default_assignor)]
        if not is_small(len(subscribers), counts):
            self._assigning = TargetAssignment(group.group_epoch, assignor, subscribers, counts, self._clock)
            return
        targets = run_at_once(assignor(subscribers, counts))
        self._assignable_at = began + (self._clock.monotonic() - began) * ASSIGNMENT_PAUSE
        for member_id, partitions in targets.items():
            if member_id not in group.targets or group.targets[member_id] != partitions:
                self.write(target_record(group.group_id, member_id, partitions))
        self.write(assignment_epoch_record(group.group_id, group.group_epoch, self._clock.now_ms()))

    def reconcile(
        self, member_id: str, *, owned: Partitions | None, has_subscription_changed: bool
    ) -> tuple[ConsumerMember, bool]:
        """Moves the member towards its target. Returns it, and whether it has changed."""
        group = self.group
        member = group.members[member_id]
        if not has_subscription_changed and member.is_reconciled_to(group.assignment_epoch):
            return member, False
        inputs = ReconcileInputs(
            target_epoch=group.assignment_epoch,
            target=group.targets.get(member_id, NOTHING_ASSIGNED),
            subscribed_topic_ids=topic_ids_of(member, group.regexes, self.topics),
            has_subscription_changed=has_subscription_changed,
            owned=owned,
            is_free=lambda topic, partition: group.is_free_for(member_id, topic, partition),
        )
        moved = reconcile(member, inputs)
        if moved == member:
            return member, False
        # No decision follows, so the record need not be replayed into a copy.
        self.records.append(moved.assignment_record(group.group_id))
        return moved, True


def target_record(group_id: str, member_id: str, partitions: Partitions) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=tuple(
                TargetTopicPartitions(topic_id=topic, partitions=tuple(sorted(numbers)))
                for topic, numbers in sorted(partitions.items())
            )
        ),
    )


def assignment_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms),
    )
