"""What consumer groups (KIP-848) and share groups (KIP-932) have in common. Kafka: ModernGroup.

There are three epochs, each reached after the one before. The *group epoch* grows with every change of members,
subscriptions or topics. The *assignment epoch* is the group epoch that the target assignment was made for. The *member
epoch* is the assignment epoch that a member has reached.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import TargetTopicPartitions
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.consumer.target_assignment import TargetAssignment
from skep.coordination.groups.group_memory import MemoryShare
from skep.coordination.shard import CoordinatorRecord, Waiter
from skep.metadata.model import TopicRecord


class Member(Protocol):
    """A member of either kind of group. It is immutable."""

    @property
    def member_id(self) -> str: ...

    @property
    def metadata_bytes(self) -> int:
        """The size of what it sent."""
        ...

    def metadata_record(self, group_id: str) -> CoordinatorRecord: ...


M = TypeVar("M", bound=Member)


class GroupLayouts(NamedTuple):
    """The classes of a group's records: both kinds of groups write the same ones, under other numbers."""

    group_key: Any
    group_value: Any
    member_key: Any
    target_epoch_key: Any
    target_epoch_value: Any
    target_key: Any
    target_value: Any
    assignment_key: Any


class ModernGroup(Generic[M]):
    """Owns the members and targets of one group. The logged part changes by ``replay`` alone.

    Not in the log: ``seen_topics`` are the cluster's topics when the group was last compared with them, and
    ``assigning`` is an assignment that is under way. No assignment starts before ``assignable_at``, on the monotonic
    clock.
    """

    layouts: ClassVar[GroupLayouts]
    replays: ClassVar[Mapping[Any, Callable[[Any, Any, Any], None]]]
    """How a record changes the group, by the class of its key."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, M] = {}
        self.targets: dict[str, Partitions] = {}
        self.name_counts: Counter[str] = Counter()
        self.metadata_bytes = 0
        """The metadata of the members, and what belongs to it."""
        self.memory = MemoryShare()
        self.seen_topics: Mapping[str, TopicRecord] | None = None
        self.assigning: TargetAssignment | None = None
        self.assignable_at = 0.0

    def copy(self) -> Self:
        """Returns a copy that can be changed independently. Members and partition sets are immutable and shared."""
        twin = type(self)(self.group_id)
        for name, value in vars(self).items():
            setattr(twin, name, value.copy() if isinstance(value, dict) and name != "seen_topics" else value)
        twin.memory = MemoryShare()
        return twin

    @property
    def is_empty(self) -> bool:
        return not self.members

    def member(self, member_id: str) -> M:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def subscribed_topics(self) -> set[str]:
        """Returns the names of all topics that a member subscribes to, whether they exist or not."""
        return set(self.name_counts)

    def waiters(self) -> Sequence[Waiter]:
        """Empty: in these protocols no request waits."""
        return ()

    # Records.

    def epoch_record(self, epoch: int, metadata_hash: int) -> CoordinatorRecord:
        return CoordinatorRecord(
            self.layouts.group_key(group_id=self.group_id),
            self.layouts.group_value(epoch=epoch, metadata_hash=metadata_hash),
        )

    def target_record(self, member_id: str, partitions: Partitions) -> CoordinatorRecord:
        return CoordinatorRecord(
            self.layouts.target_key(group_id=self.group_id, member_id=member_id),
            self.layouts.target_value(topic_partitions=recorded(partitions)),
        )

    def assignment_epoch_record(self, epoch: int, now_ms: int) -> CoordinatorRecord:
        return CoordinatorRecord(
            self.layouts.target_epoch_key(group_id=self.group_id),
            self.layouts.target_epoch_value(assignment_epoch=epoch, assignment_timestamp=now_ms),
        )

    def member_keys(self, member_id: str) -> list[Any]:
        """Returns the keys of all records of a member in the order of their deletion: the metadata comes last."""
        layouts = self.layouts
        return [
            key(group_id=self.group_id, member_id=member_id)
            for key in (layouts.assignment_key, layouts.target_key, layouts.member_key)
        ]

    def tombstones(self) -> Sequence[CoordinatorRecord]:
        keys = [key for member_id in self.members for key in self.member_keys(member_id)]
        return [*(CoordinatorRecord(key, None) for key in keys), *self.own_tombstones()]

    def own_tombstones(self) -> Sequence[CoordinatorRecord]:
        """Returns the tombstones of the group itself, which come after those of the members."""
        layouts, group_id = self.layouts, self.group_id
        keys = [layouts.target_epoch_key(group_id=group_id), *self.other_keys(), layouts.group_key(group_id=group_id)]
        return [CoordinatorRecord(key, None) for key in keys]

    def other_keys(self) -> list[Any]:
        """Returns the keys of the records that only groups of this kind have."""
        return []

    # Replay.

    def replay(self, key: Any, value: Any) -> None:
        """Applies one record of this group, but not the tombstone of the group itself."""
        self.replays[type(key)](self, key, value)
        self.memory.set(len(self.members), self.metadata_bytes)

    def replay_epoch(self, key: Any, value: Any) -> None:
        self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash

    def replay_assignment_epoch(self, key: Any, value: Any) -> None:
        self.assignment_epoch = 0 if value is None else value.assignment_epoch

    def replay_target(self, key: Any, value: Any) -> None:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            self.targets[key.member_id] = partitions_of(value.topic_partitions)


def recorded(partitions: Partitions) -> tuple[TargetTopicPartitions, ...]:
    return tuple(
        TargetTopicPartitions(topic_id=topic, partitions=tuple(sorted(numbers)))
        for topic, numbers in sorted(partitions.items())
    )


def partitions_of(topics: Iterable[TargetTopicPartitions]) -> dict[uuid.UUID, frozenset[int]]:
    """Returns what ``recorded`` was made of."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}


def count(counts: Counter[str], names: Iterable[str], step: int) -> None:
    """Adds ``step`` to the count of each name. Names that nobody has are left out."""
    for name in names:
        counts[name] += step
        if not counts[name]:
            del counts[name]
