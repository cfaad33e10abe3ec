"""The change of a consumer or share group by one operation: the records so far, and the group after them.

An operation changes a group only by records, and each decision depends on the one before: a join leads to an epoch,
that to an assignment, that to the member's partitions. So the records are also replayed into a copy of the group, which
is made for the first record; most heartbeats have none.
"""

from typing import Any, Generic, TypeVar

from skep.base.clock import Clock
from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Work, run_at_once
from skep.coordination.groups.assignors.spec import Assignment, Subscribers
from skep.coordination.groups.consumer.consumer_subscriptions import metadata_hash
from skep.coordination.groups.consumer.modern_group import Member, ModernGroup
from skep.coordination.groups.consumer.target_assignment import TargetAssignment, assigned_at, is_small
from skep.coordination.groups.group_memory import MEMBER_BYTES, check_memory
from skep.coordination.groups.metadata_size import has_room, too_large
from skep.coordination.groups.topic_patterns.topic_matches import Topics
from skep.coordination.shard import CoordinatorRecord

ASSIGNMENT_PAUSE = 20
"""After an assignment the next one waits this many times as long as it took. If many members join a large group at
once, an assignment for each of them would take quadratic time. In a small group the pause is not noticeable."""

G = TypeVar("G", bound=ModernGroup[Any])


class ModernChange(Generic[G]):
    """``group`` is the group after ``records``; ``topics`` are those of the cluster."""

    def __init__(self, group: G, topics: Topics, clock: Clock) -> None:
        self.group = group
        self.topics = topics
        self.records: list[CoordinatorRecord] = []
        self.clock = clock
        self._is_copy = False
        self._assignable_at = group.assignable_at
        self._assigning = group.assigning

    def write(self, record: CoordinatorRecord) -> None:
        if not self._is_copy:
            self.group, self._is_copy = self.group.copy(), True
        self.group.replay(record.key, record.value)
        self.records.append(record)

    def remember(self, group: G) -> None:
        """Copies what is not in the log to the group, once the records are written."""
        group.assignable_at, group.assigning = self._assignable_at, self._assigning
        group.seen_topics = self.topics

    @property
    def is_unfinished(self) -> bool:
        """Whether partitions are still being assigned after this change."""
        return self._assigning is not None

    # Members.

    def check_room(self, updated: Member, settings: CoordinatorConfig, used_bytes: int) -> None:
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
        for key in self.group.member_keys(member_id):
            self.write(CoordinatorRecord(key, None))

    def members_have_left(self) -> None:
        """Starts a new epoch after members have left. A group without members is assigned at once."""
        self.bump_epoch(always=True)
        if self.group.is_empty:
            # At no time, so that an assignment interval does not delay the assignment of the next member.
            self.write(self.group.assignment_epoch_record(self.group.group_epoch, 0))

    # Epochs.

    def bump_epoch(self, *, always: bool) -> None:
        """Starts a new group epoch; unless ``always``, only if the subscribed topics have changed."""
        group = self.group
        current = metadata_hash(group.subscribed_topics(), self.topics)
        if always or current != group.metadata_hash:
            self.write(group.epoch_record(group.group_epoch + 1, current))

    @property
    def is_assignment_due(self) -> bool:
        """Whether the group epoch is new, no assignment is under way, and the last one is long enough ago."""
        group = self.group
        return (
            group.assignment_epoch < group.group_epoch
            and self._assigning is None
            and self.clock.monotonic() >= group.assignable_at
        )

    def make_assignment(self, subscribers: Subscribers, partitions: int, work: Work[Assignment]) -> None:
        """Makes a new target assignment of so many partitions, which ``work`` computes.

        The assignment of a large group is only started here; ``assignment_task`` computes and writes it.
        """
        group, began = self.group, self.clock.monotonic()
        if not is_small(len(subscribers), partitions):
            self._assigning = TargetAssignment(group.group_epoch, subscribers.keys(), work, self.clock)
            return
        targets = run_at_once(work)
        self._assignable_at = began + (self.clock.monotonic() - began) * ASSIGNMENT_PAUSE
        for member_id, target in targets.items():
            if member_id not in group.targets or group.targets[member_id] != target:
                self.write(group.target_record(member_id, target))
        self.write(group.assignment_epoch_record(group.group_epoch, assigned_at(targets.values(), self.clock)))
