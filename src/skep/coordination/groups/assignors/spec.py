"""The input and the result of an assignor: partitions by topic id, and the members that subscribe to them.

An assignor can be interrupted: for a thousand members and ten thousand partitions it takes 15 ms. Its input does not
change meanwhile.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from skep.base.loop.slicer import Work

Partitions = Mapping[uuid.UUID, frozenset[int]]
"""Partitions of several topics. No topic is empty."""

PartitionCounts = Mapping[uuid.UUID, int]
"""The number of partitions of every subscribed topic."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it. ``partitions`` is its part of the assignment in force."""

    instance_id: str | None
    topic_ids: frozenset[uuid.UUID]
    partitions: Partitions


Subscribers = Mapping[str, Subscriber]

Assignment = dict[str, Partitions]

Assignor = Callable[[Subscribers, PartitionCounts], Work[Assignment]]
"""Assigns each partition to one member that subscribes to its topic."""

Working = dict[str, dict[uuid.UUID, set[int]]]
"""An assignment that is being computed."""


def kept_partitions(subscribers: Subscribers, counts: PartitionCounts, order: Iterable[str]) -> Work[Working]:
    """Returns what can stay of the assignment in force: subscribed topics, existing partitions, each only once.

    A partition may be assigned twice: the client that led a classic group may have done so before the upgrade. Then the
    first member in ``order`` keeps it.
    """
    free = {topic: set(range(count)) for topic, count in counts.items()}
    kept: Working = {}
    for member in order:
        subscriber = subscribers[member]
        mine = kept[member] = {}
        for topic, partitions in subscriber.partitions.items():
            if topic in subscriber.topic_ids:
                stays = partitions & free[topic]
                if stays:
                    mine[topic] = set(stays)
                    free[topic] -= stays
        yield
    return kept


def free_partitions(kept: Working, counts: PartitionCounts) -> Work[dict[uuid.UUID, set[int]]]:
    """Returns the partitions of each topic that no member has."""
    free = {topic: set(range(count)) for topic, count in counts.items()}
    for mine in kept.values():
        for topic, partitions in mine.items():
            free[topic] -= partitions
        yield
    return free


def assignment_of(working: Working, subscribers: Subscribers) -> Work[Assignment]:
    """Returns the result. A member whose partitions have not changed keeps the same mapping object."""
    result: Assignment = {}
    for member, mine in working.items():
        before = subscribers[member].partitions
        after = {topic: frozenset(partitions) for topic, partitions in mine.items() if partitions}
        result[member] = before if after == before else after
        yield
    return result
