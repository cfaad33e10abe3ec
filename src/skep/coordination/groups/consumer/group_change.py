"""The change of a consumer group by one operation: its members, their expressions, and their assignments."""

from collections.abc import Mapping

from skep.base.clock import Clock
from skep.coordination.group_records import ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue
from skep.coordination.groups.assignors import range as range_assignor
from skep.coordination.groups.assignors import uniform
from skep.coordination.groups.assignors.spec import Assignor, Partitions
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.consumer_subscriptions import (
    NOTHING_ASSIGNED,
    subscribers_of,
    topic_ids_of,
)
from skep.coordination.groups.consumer.modern_change import ModernChange
from skep.coordination.groups.consumer.reconciliation import ReconcileInputs, reconcile
from skep.coordination.groups.topic_patterns.topic_matches import TopicFilter, TopicMatches, Topics
from skep.coordination.groups.topic_patterns.topic_pattern import topic_pattern
from skep.coordination.shard import CoordinatorRecord

ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform.assign, "range": range_assignor.assign}


class GroupChange(ModernChange[ConsumerGroup]):
    def __init__(
        self, group: ConsumerGroup, topics: Topics, clock: Clock, topic_filter: TopicFilter | None = None
    ) -> None:
        super().__init__(group, topics, clock)
        self._matches = group.matches
        self._filter = topic_filter
        before = group.topic_filter
        self._is_filter_new = topic_filter is not None and (before is None or before.version != topic_filter.version)

    def remember(self, group: ConsumerGroup) -> None:
        seen_before = group.seen_topics
        super().remember(group)
        group.matches = self._matches
        if self._filter is not None:
            group.topic_filter = self._filter
        if self._matches is not None:
            group.seen_topics = seen_before

    @property
    def is_unfinished(self) -> bool:
        """Whether topics are still being matched, or partitions assigned, after this change."""
        return self._matches is not None or super().is_unfinished

    # Members.

    def members_have_left(self) -> None:
        self._drop_unused_regexes()
        super().members_have_left()

    def replace_member(self, member: ConsumerMember, successor: ConsumerMember) -> None:
        """Replaces a static member by its successor, which has the same assignment and another id."""
        target = self.group.targets.get(member.member_id, NOTHING_ASSIGNED)
        self.remove_member(member.member_id)
        self.write(successor.metadata_record(self.group.group_id))
        self.write(self.group.target_record(successor.member_id, target))
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
        are_topics_new |= self._is_filter_new and bool(self.group.regex_counts)
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
        matches = under_way or TopicMatches(self.topics, group.seen_topics, self._filter or group.topic_filter)
        for regex in group.regex_counts:
            before = group.regexes.get(regex)
            if before is None or group.seen_topics is not self.topics or self._is_filter_new:
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
                topics=tuple(sorted(topics)), version=0, timestamp=self.clock.now_ms()
            )
        self.write(CoordinatorRecord(key, value))

    # Assignments.

    def assign(self, default_assignor: str) -> None:
        """Makes a new target assignment if one is due."""
        if self.is_assignment_due:
            subscribers, counts = subscribers_of(self.group, self.topics)
            assignor = ASSIGNORS[self.group.preferred_assignor(default_assignor)]
            self.make_assignment(subscribers, sum(counts.values()), assignor(subscribers, counts))

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
