"""The existing topics that members subscribe to by name or by expression, and their hash.

A group gets a new assignment when its subscribed topics change: one is created, deleted, or gets more partitions. The
group's record has a hash of them, so that a change is noticed also after a restart.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping

from skep.coordination.groups.assignors.spec import PartitionCounts, Subscriber, Subscribers
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.topic_patterns.topic_matches import Topics


def topic_ids_of(member: ConsumerMember, regexes: Mapping[str, frozenset[str]], topics: Topics) -> frozenset[uuid.UUID]:
    """Returns the topics that the member subscribes to and that exist."""
    names: Iterable[str] = member.topic_names
    if member.topic_regex:
        names = member.topic_names | regexes.get(member.topic_regex, frozenset())
    return frozenset(topics[name].topic_id for name in names if name in topics)


def subscribers_of(group: ConsumerGroup, topics: Topics) -> tuple[Subscribers, PartitionCounts]:
    """Returns the input of an assignor. Members with the same subscription, as most have, share its topics."""
    known: dict[tuple[frozenset[str], str], frozenset[uuid.UUID]] = {}
    subscribers = {}
    for member in group.members.values():
        subscription = (member.topic_names, member.topic_regex)
        if subscription not in known:
            known[subscription] = topic_ids_of(member, group.regexes, topics)
        subscribers[member.member_id] = Subscriber(
            member.instance_id, known[subscription], group.targets.get(member.member_id, NOTHING_ASSIGNED)
        )
    subscribed = frozenset().union(*known.values())
    counts = {
        topics[name].topic_id: len(topics[name].partitions)
        for name in group.subscribed_topics()
        if name in topics and topics[name].topic_id in subscribed
    }
    return subscribers, counts


NOTHING_ASSIGNED: Mapping[uuid.UUID, frozenset[int]] = {}


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Returns a hash of the existing topics and their numbers of partitions; 0 if there are none."""
    existing = sorted(name for name in names if name in topics)
    if not existing:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name in existing:
        topic = topics[name]
        digest.update(f"{name}/{topic.topic_id.hex}/{len(topic.partitions)}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
