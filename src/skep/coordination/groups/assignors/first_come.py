"""The assignor of share groups with one active member (``skep.share.members`` is exclusive or failover).

All partitions of a topic go to the first member in order that subscribes to it. If the members subscribe to the same
topics, that is one member, and the others are stand-bys. If not, no topic is left without a reader.
"""

import uuid

from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import Assignment, Partitions, Subscribers


def assign(subscribers: Subscribers, assignable: Partitions) -> Work[Assignment]:
    """Assigns the partitions. The members are in the order in which they came."""
    unassigned = dict(assignable)
    assignment: Assignment = {}
    for member_id, subscriber in subscribers.items():
        mine: dict[uuid.UUID, frozenset[int]] = {
            topic: unassigned.pop(topic) for topic in subscriber.topic_ids & unassigned.keys()
        }
        # A target that has not changed stays the same object.
        assignment[member_id] = subscriber.partitions if mine == subscriber.partitions else mine
        yield
    return assignment
