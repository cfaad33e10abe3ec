"""Which partitions a share group has state of: the record ShareGroupStatePartitionMetadata (kind 15).

A partition is *initializing* from the moment at which the coordinator decides to initialize its state until the state
is known to exist. Then it is *initialized*, and only then it may be assigned. A topic is *deleting* while its state is
being deleted on request; a topic in that list whose deletion was interrupted is initialized again if members subscribe
to it.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from skep.coordination.group_records import (
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    StateTopic,
    StateTopicPartitions,
)
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.shard import CoordinatorRecord

_NOTHING: Partitions = MappingProxyType({})


class StatePartitions(NamedTuple):
    """Immutable. ``names`` has the names of all topics in the three lists."""

    initializing: Partitions = _NOTHING
    initialized: Partitions = _NOTHING
    deleting: frozenset[uuid.UUID] = frozenset()
    names: Mapping[uuid.UUID, str] = MappingProxyType({})

    @property
    def everything(self) -> Partitions:
        """The partitions that may have state, without those of topics that are being deleted."""
        return _union(self.initializing, self.initialized)

    def missing(self, topic_id: uuid.UUID, count: int) -> frozenset[int]:
        """Returns which of the topic's partitions are not initialized."""
        initialized = self.initialized.get(topic_id, frozenset())
        # Partitions are never removed, so equal sizes mean that all are there.
        return frozenset() if len(initialized) >= count else frozenset(range(count)) - initialized

    def begun(self, partitions: Partitions, names: Mapping[uuid.UUID, str]) -> "StatePartitions":
        """Returns this with partitions that are to be initialized."""
        return self._replace(
            initializing=_union(self.initializing, partitions),
            deleting=self.deleting - partitions.keys(),
            names={**self.names, **names},
        )

    def done(self, partitions: Partitions) -> "StatePartitions":
        """Returns this with partitions that have state now. Those that were not initializing are left out: their topic
        was deleted meanwhile."""
        existing = {
            topic: numbers & self.initializing[topic]
            for topic, numbers in partitions.items()
            if topic in self.initializing
        }
        left = {topic: numbers - existing.get(topic, frozenset()) for topic, numbers in self.initializing.items()}
        return self._replace(initializing=_not_empty(left), initialized=_union(self.initialized, _not_empty(existing)))

    def to_delete(self, topics: Collection[uuid.UUID]) -> "StatePartitions":
        """Returns this with ``topics`` in the state deleting, and nowhere else."""
        gone = self.without(topics)
        names = {topic: name for topic, name in self.names.items() if topic in topics}
        return gone._replace(deleting=gone.deleting.union(topics), names={**gone.names, **names})

    def without(self, topics: Collection[uuid.UUID]) -> "StatePartitions":
        return StatePartitions(
            {topic: numbers for topic, numbers in self.initializing.items() if topic not in topics},
            {topic: numbers for topic, numbers in self.initialized.items() if topic not in topics},
            self.deleting.difference(topics),
            {topic: name for topic, name in self.names.items() if topic not in topics},
        )

    # The record.

    def record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ShareGroupStatePartitionMetadataKey(group_id=group_id),
            ShareGroupStatePartitionMetadataValue(
                initializing_topics=self._recorded(self.initializing),
                initialized_topics=self._recorded(self.initialized),
                deleting_topics=tuple(
                    StateTopic(topic_id=topic, topic_name=self.names.get(topic, "")) for topic in sorted(self.deleting)
                ),
            ),
        )

    def _recorded(self, partitions: Partitions) -> tuple[StateTopicPartitions, ...]:
        return tuple(
            StateTopicPartitions(
                topic_id=topic, topic_name=self.names.get(topic, ""), partitions=tuple(sorted(numbers))
            )
            for topic, numbers in sorted(partitions.items())
        )

    @classmethod
    def of(cls, value: ShareGroupStatePartitionMetadataValue) -> "StatePartitions":
        topics: Iterable[StateTopic | StateTopicPartitions] = (
            *value.initializing_topics,
            *value.initialized_topics,
            *value.deleting_topics,
        )
        return cls(
            {topic.topic_id: frozenset(topic.partitions) for topic in value.initializing_topics},
            {topic.topic_id: frozenset(topic.partitions) for topic in value.initialized_topics},
            frozenset(topic.topic_id for topic in value.deleting_topics),
            {topic.topic_id: topic.topic_name for topic in topics},
        )


def _union(one: Partitions, other: Partitions) -> Partitions:
    return {**one, **{topic: numbers | one.get(topic, frozenset()) for topic, numbers in other.items()}}


def _not_empty(partitions: Partitions) -> Partitions:
    return {topic: numbers for topic, numbers in partitions.items() if numbers}
