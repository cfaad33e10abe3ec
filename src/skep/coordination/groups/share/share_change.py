"""The change of a share group by one operation: its members, its epochs, and their assignments."""

import uuid

from skep.base.clock import Clock
from skep.coordination.groups.assignors import simple
from skep.coordination.groups.assignors.spec import Partitions, Subscriber
from skep.coordination.groups.consumer.consumer_subscriptions import NOTHING_ASSIGNED
from skep.coordination.groups.consumer.modern_change import ModernChange
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.groups.share.share_member import ShareMember
from skep.coordination.groups.topic_patterns.topic_matches import Topics

PLACE_COST = 8
"""In partitions of a consumer group: the assignor takes that many times as long for a partition."""


class ShareChange(ModernChange[ShareGroup]):
    """``lacks_state``: the state of some partitions of subscribed topics has to be initialized."""

    def __init__(self, group: ShareGroup, topics: Topics, clock: Clock) -> None:
        super().__init__(group, topics, clock)
        self.lacks_state = group.may_lack_state

    def remember(self, group: ShareGroup) -> None:
        super().remember(group)
        group.may_lack_state = self.lacks_state
        if group.assignment_epoch >= group.group_epoch:
            # While an assignment is under way it may have been computed for earlier states.
            group.assigned_states = group.states

    @property
    def is_unfinished(self) -> bool:
        """Whether the group has to wait for its next assignment, or one is being computed."""
        return super().is_unfinished or self.group.assignment_epoch < self.group.group_epoch

    def update_member(self, member: ShareMember, updated: ShareMember, assignment_interval_ms: int) -> None:
        """Adds or updates a member, and assigns if needed. ``member`` is in the group already, or new."""
        is_new = member.member_id not in self.group.members
        are_topics_new = self.group.seen_topics is not self.topics
        if is_new or updated is not member:
            self.write(updated.metadata_record(self.group.group_id))
        is_bump_due = is_new or updated.topic_names != member.topic_names or self._is_assignment_stale()
        if is_bump_due or are_topics_new:
            self.bump_epoch(always=is_bump_due)
        if is_bump_due or are_topics_new or self.lacks_state:
            self.lacks_state = bool(missing_partitions(self.group, self.topics))
        now_ms = self.clock.now_ms()
        if self.is_assignment_due and not 0 <= now_ms - self.group.assigned_at_ms < assignment_interval_ms:
            self._assign()

    def _is_assignment_stale(self) -> bool:
        """Whether partitions were initialized or deleted since the last assignment, and no other one is due."""
        group = self.group
        if group.states is group.assigned_states or group.assignment_epoch < group.group_epoch:
            return False
        assigned: dict[uuid.UUID, frozenset[int]] = {}
        for target in group.targets.values():
            for topic, numbers in target.items():
                assigned[topic] = assigned.get(topic, frozenset()) | numbers
        return assigned != self._assignable()

    def _assignable(self) -> Partitions:
        """Returns the initialized partitions of the subscribed topics that exist."""
        initialized = self.group.states.initialized
        found = {}
        for name in self.group.name_counts:
            if (topic := self.topics.get(name)) is not None and topic.topic_id in initialized:
                found[topic.topic_id] = initialized[topic.topic_id]
        return found

    def _assign(self) -> None:
        group, assignable = self.group, self._assignable()
        topic_ids = {names: self._topic_ids(names) for names in {one.topic_names for one in group.members.values()}}
        subscribers = {
            member.member_id: Subscriber(
                None, topic_ids[member.topic_names], group.targets.get(member.member_id, NOTHING_ASSIGNED)
            )
            for member in group.members.values()
        }
        # A partition has as many members as it takes for every member to have one.
        places = max(sum(map(len, assignable.values())), len(subscribers))
        self.make_assignment(subscribers, places * PLACE_COST, simple.assign(subscribers, assignable))

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
