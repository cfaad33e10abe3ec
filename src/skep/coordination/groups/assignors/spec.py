"""What an assignor is given and gives: partitions by topic id, and the members that want them.

An assignor is work that can be interrupted: for a thousand members and ten thousand partitions it takes 15 ms. What it
is given does not change meanwhile.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from skep.base.loop.slicer import Work

Partitions = Mapping[uuid.UUID, frozenset[int]]
"""Partitions of several topics; a topic without any is not in it."""

PartitionCounts = Mapping[uuid.UUID, int]
"""Of every topic that anybody subscribes to, how many partitions it has."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it: ``partitions`` is what it has by the assignment that is in force."""

    instance_id: str | None
    topic_ids: frozenset[uuid.UUID]
    partitions: Partitions


Subscribers = Mapping[str, Subscriber]

Assignment = dict[str, Partitions]

Assignor = Callable[[Subscribers, PartitionCounts], Work[Assignment]]
"""Gives each member its partitions, each partition to one member that subscribes to its topic."""

Working = dict[str, dict[uuid.UUID, set[int]]]
"""An assignment that is being made."""


def kept_partitions(subscribers: Subscribers, counts: PartitionCounts, order: Iterable[str]) -> Work[Working]:
    """What of the assignment in force can stay: topics subscribed to, partitions that there are, each only once.

    The last cannot be taken for granted: a classic group whose client assigned a partition twice may become a consumer
    group, and then whoever comes first in ``order`` keeps it.
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
    """The partitions of each topic that nobody has."""
    free = {topic: set(range(count)) for topic, count in counts.items()}
    for mine in kept.values():
        for topic, partitions in mine.items():
            free[topic] -= partitions
        yield
    return free


def assignment_of(working: Working, subscribers: Subscribers) -> Work[Assignment]:
    """The assignment as it is given away; what has not changed for a member is the very mapping that it had."""
    result: Assignment = {}
    for member, mine in working.items():
        before = subscribers[member].partitions
        after = {topic: frozenset(partitions) for topic, partitions in mine.items() if partitions}
        result[member] = before if after == before else after
        yield
    return result
