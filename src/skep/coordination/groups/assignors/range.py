"""The ``range`` assignor: every member gets consecutive partitions of each topic, the first members one more if needed.

Of topics with the same number of partitions and the same subscribers, a member gets the same partition numbers: records
with the same key in two topics go to one member, which joins of streams need. Members are ordered by instance id, then
by member id, so a static member keeps its partitions when it returns. Nothing else is sticky.
"""

import uuid

from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import Assignment, PartitionCounts, Subscribers


def assign(subscribers: Subscribers, counts: PartitionCounts) -> Work[Assignment]:
    order = sorted(subscribers, key=lambda member: _place(member, subscribers[member].instance_id))
    subscribed: dict[uuid.UUID, list[str]] = {}
    for member in order:
        for topic in subscribers[member].topic_ids:
            subscribed.setdefault(topic, []).append(member)
        yield
    result: dict[str, dict[uuid.UUID, frozenset[int]]] = {member: {} for member in subscribers}
    for topic, members in subscribed.items():
        quota, extra = divmod(counts[topic], len(members))
        start = 0
        for place, member in enumerate(members):
            end = start + quota + (place < extra)
            if end == start:
                break
            result[member][topic] = frozenset(range(start, end))
            start = end
            yield
    return dict(result)


def _place(member: str, instance_id: str | None) -> tuple[bool, str]:
    return (instance_id is None, instance_id if instance_id is not None else member)
