"""The change of a share group by one operation: its members, its epochs, and their assignments."""

import uuid
from dataclasses import replace

from skep.base.clock import Clock
from skep.base.config.share_group_config import SHARED, ShareGroupConfig
from skep.base.loop.slicer import run_at_once
from skep.coordination.groups.assignors import first_come, simple
from skep.coordination.groups.assignors.spec import Partitions, Subscriber, Subscribers
from skep.coordination.groups.consumer.consumer_subscriptions import NOTHING_ASSIGNED
from skep.coordination.groups.consumer.modern_change import ModernChange
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.groups.share.share_member import ShareMember
from skep.coordination.groups.topic_patterns.topic_matches import Topics

PLACE_COST = 8
"""In partitions of a consumer group: the assignor takes that many times as long for a partition."""


class ShareChange(ModernChange[ShareGroup]):
    """``lacks_state``: the state of some partitions of subscribed topics has to be initialized."""

    def __init__(self, group: ShareGroup, topics: Topics, clock: Clock, config: ShareGroupConfig) -> None:
        super().__init__(group, topics, clock)
        self.lacks_state = group.may_lack_state
        self._config = config

    def remember(self, group: ShareGroup) -> None:
        super().remember(group)
        group.may_lack_state = self.lacks_state
        if group.assignment_epoch >= group.group_epoch:
            # While an assignment is under way it may have been computed for earlier states.
            group.assigned_states, group.assigned_as = group.states, self._config.members

    @property
    def is_unfinished(self) -> bool:
        """Whether the group has to wait for its next assignment, or one is being computed."""
        return super().is_unfinished or self.group.assignment_epoch < self.group.group_epoch

    def update_member(self, member: ShareMember, updated: ShareMember) -> None:
        """Adds or updates a member, and assigns if needed. ``member`` is in the group already, or new."""
        is_new = member.member_id not in self.group.members
        are_topics_new = self.group.seen_topics is not self.topics
        if is_new:
            # Every join begins an epoch, so this tells the order in which members came, also after a restart.
            updated = replace(updated, joined_epoch=self.group.group_epoch + 1)
        if is_new or updated is not member:
            self.write(updated.metadata_record(self.group.group_id))
        is_bump_due = is_new or updated.topic_names != member.topic_names or self._is_assignment_stale()
        if is_bump_due or are_topics_new:
            self.bump_epoch(always=is_bump_due)
        if is_bump_due or are_topics_new or self.lacks_state:
            self.lacks_state = bool(missing_partitions(self.group, self.topics))
        now_ms = self.clock.now_ms()
        if self.is_assignment_due and not 0 <= now_ms - self.group.assigned_at_ms < self._config.assignment_interval_ms:
            self._assign()

    def _is_assignment_stale(self) -> bool:
        """Whether partitions were initialized or deleted, or other members should have them, since the last assignment,
        and no other one is due."""
        group = self.group
        is_seen = group.states is group.assigned_states and group.assigned_as == self._config.members
        if is_seen or group.assignment_epoch < group.group_epoch:
            return False
        assigned: dict[uuid.UUID, frozenset[int]] = {}
        for target in group.targets.values():
            for topic, numbers in target.items():
                assigned[topic] = assigned.get(topic, frozenset()) | numbers
        return assigned != self._assignable() or not self._is_assigned_as_told()

    def _is_assigned_as_told(self) -> bool:
        """Whether the targets could have been made for the current ``skep.share.members``."""
        group, assignable = self.group, self._assignable()
        subscribers = self._subscribers()
        if self._config.members != SHARED:
            expected = run_at_once(first_come.assign(subscribers, assignable))
            return all(group.targets.get(member, NOTHING_ASSIGNED) == target for member, target in expected.items())
        # Only failover leaves members without a partition.
        return all(
            group.targets.get(member) or subscriber.topic_ids.isdisjoint(assignable)
            for member, subscriber in subscribers.items()
        )

    def _subscribers(self) -> Subscribers:
        """Returns the members in the order in which they came."""
        group = self.group
        topic_ids = {names: self._topic_ids(names) for names in {one.topic_names for one in group.members.values()}}
        return {
            member.member_id: Subscriber(
                None, topic_ids[member.topic_names], group.targets.get(member.member_id, NOTHING_ASSIGNED)
            )
            for member in sorted(group.members.values(), key=lambda member: (member.joined_epoch, member.member_id))
        }

    def _assignable(self) -> Partitions:
        """Returns the initialized partitions of the subscribed topics that exist."""
        initialized = self.group.states.initialized
        found = {}
        for name in self.group.name_counts:
            if (topic := self.topics.get(name)) is not None and topic.topic_id in initialized:
                found[topic.topic_id] = initialized[topic.topic_id]
        return found

    def _assign(self) -> None:
        assignable, subscribers = self._assignable(), self._subscribers()
        # A partition has as many members as it takes for every member to have one.
        places = max(sum(map(len, assignable.values())), len(subscribers))
        assign = simple.assign if self._config.members == SHARED else first_come.assign
        self.make_assignment(subscribers, places * PLACE_COST, assign(subscribers, assignable))

    def _topic_ids(self, names: frozenset[str]) -> frozenset[uuid.UUID]:
        return frozenset(self.topics[name].topic_id for name in names if name in self.topics)

    def reconcile(self, member_id: str, *, is_subscription_new: bool) -> ShareMember:
        """Gives the member its target, as far as it subscribes to the topics. Returns it."""
        group = self.group
        member = group.members[member_id]
        if member.member_epoch == group.assignment_epoch and not is_subscription_new:
            return member
        topic_ids = self._topic_ids(member.topic_names)
        target = group.targets.get(member_id, NOTHING_ASSIGNED)
        assigned = {topic: numbers for topic, numbers in target.items() if topic in topic_ids}
        moved = member.at_epoch(group.assignment_epoch, assigned)
        if moved == member:
            return member
        # No decision follows, so the record need not be replayed into a copy.
        self.records.append(moved.assignment_record(group.group_id))
        return moved


def missing_partitions(group: ShareGroup, topics: Topics) -> dict[uuid.UUID, frozenset[int]]:
    """Returns the partitions of subscribed topics whose state is not initialized."""
    missing = {}
    for name in group.name_counts:
        topic = topics.get(name)
        if topic is not None and (numbers := group.states.missing(topic.topic_id, len(topic.partitions))):
            missing[topic.topic_id] = numbers
    return missing
