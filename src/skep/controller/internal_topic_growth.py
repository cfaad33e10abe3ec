"""Adds replicas to the coordinators' topics when brokers join.

The first client that needs these topics creates them, on as many brokers as there are then: a broker that serves alone
has to serve groups too. If they stayed like that, a cluster whose clients were up before it would lose its coordinators
with one broker. This is checked when a broker joins, and only then: a replica that an operator has removed (from a
broker that is being drained) must not be put back meanwhile.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from skep.controller.elections import Liveness
from skep.controller.placement import ring_of
from skep.controller.reassignment import begun
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord


def grown_topics(image: ClusterImage, wanted: Mapping[str, int], changed: Iterable[TopicRecord]) -> list[TopicRecord]:
    """Returns ``changed``, with the topics added that have fewer replicas than ``wanted``, their reassignments
    begun."""
    after = {topic.name: topic for topic in changed}
    ring, brokers = ring_of(image.brokers.values()), Liveness.of(image.brokers)
    for name, factor in wanted.items():
        if name not in image.topics:
            continue
        topic = after.get(name, image.topics[name])
        partitions = tuple(
            _grown(partition, factor, ring[index % len(ring) :] + ring[: index % len(ring)], image, brokers)
            if ring
            else partition
            for index, partition in enumerate(topic.partitions)
        )
        if partitions != topic.partitions:
            after[name] = replace(topic, partitions=partitions)
    return list(after.values())


def _grown(
    partition: PartitionRecord, factor: int, order: list[BrokerRecord], image: ClusterImage, brokers: Liveness
) -> PartitionRecord:
    """Returns the partition with missing replicas taken from ``order``, first one per rack or machine."""
    target = list(partition.target)
    if len(target) >= factor or partition.removing or partition.is_undecided:
        return partition
    places = {image.brokers[broker].place for broker in target if broker in image.brokers}
    others = [broker for broker in order if broker.id not in target]
    for broker in [*others]:
        if len(target) < factor and broker.place not in places:
            others.remove(broker)
            target.append(broker.id)
            places.add(broker.place)
    target += [broker.id for broker in others[: factor - len(target)]]
    return partition if target == list(partition.target) else begun(partition, target, brokers)
