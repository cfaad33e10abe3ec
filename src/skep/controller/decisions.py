"""The controller's decisions for the whole cluster: from an image to the topics that have to be written.

The work is linear in the number of partitions, and next to nothing for those that stay as they are. All partitions are
checked whenever a broker comes or goes, which is simpler than tracking what each broker holds, and cannot miss
anything. With 20,000 partitions this takes a tenth of a second when a broker dies, so it is done in slices
(``base/loop/slicer.py``). An image is immutable, so all slices see the same one.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace

from skep.base.ids import BrokerId, TopicPartition
from skep.base.loop.slicer import Work
from skep.controller.elections import Liveness, missing, preferred, settled
from skep.controller.reassignment import finished
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import NO_LEADER, PartitionRecord, TopicRecord

UNCLEAN_OPTION = "unclean.leader.election.enable"
PARTITIONS_PER_STEP = 100

IsUnclean = Callable[[TopicRecord], bool]
"""Whether a topic prefers losing records to having no leader."""


def is_unclean(topic: TopicRecord, default: bool) -> bool:
    text = topic.config.get(UNCLEAN_OPTION)
    return default if text is None else text == "true"


def decided(partition: PartitionRecord, brokers: Liveness, *, unclean: bool) -> PartitionRecord:
    """Returns the partition with a leader if one is possible, and with a completed reassignment. The same object if
    nothing changes."""
    after = settled(partition, brokers, unclean=unclean)
    return finished(after, brokers) if after.adding or after.removing else after


def changed_topics(
    image: ClusterImage, topics: Iterable[TopicRecord], is_unclean: IsUnclean
) -> Work[list[TopicRecord]]:
    """Returns those of ``topics`` that have to change, changed."""
    brokers = Liveness.of(image.brokers)
    changed = []
    for topic in topics:
        unclean = is_unclean(topic)
        partitions: list[PartitionRecord] = []
        for some in _parts(topic):
            partitions += [decided(partition, brokers, unclean=unclean) for partition in some]
            yield
        if (decided_ones := tuple(partitions)) != topic.partitions:
            changed.append(replace(topic, partitions=decided_ones))
    return changed


def preferred_elections(
    image: ClusterImage, *, above_percentage: int = 0, only: Container[str] | None = None
) -> Work[list[TopicRecord]]:
    """Returns the topics whose leadership returns to the first replica, of all topics or ``only`` these.

    A broker gets its leaderships back when it lacks more than ``above_percentage`` of those it should have.
    """
    brokers = Liveness.of(image.brokers)
    short_of_leaderships = yield from _imbalanced(image, above_percentage)
    changed = []
    for topic in image.topics.values():
        if only is not None and topic.name not in only:
            continue
        partitions: list[PartitionRecord] = []
        for some in _parts(topic):
            partitions += [
                preferred(partition, brokers) if partition.replicas[0] in short_of_leaderships else partition
                for partition in some
            ]
            yield
        if (elected := tuple(partitions)) != topic.partitions:
            changed.append(replace(topic, partitions=elected))
    return changed


def _parts(topic: TopicRecord) -> Iterator[tuple[PartitionRecord, ...]]:
    """Yields the partitions of a topic, as many at a time as one step may process."""
    for start in range(0, len(topic.partitions), PARTITIONS_PER_STEP):
        yield topic.partitions[start : start + PARTITIONS_PER_STEP]


def _imbalanced(image: ClusterImage, above_percentage: int) -> Work[set[BrokerId]]:
    should: Counter[BrokerId] = Counter()
    lacks: Counter[BrokerId] = Counter()
    for topic in image.topics.values():
        for some in _parts(topic):
            for partition in some:
                first = partition.replicas[0]
                should[first] += 1
                if partition.leader != first:
                    lacks[first] += 1
            yield
    return {broker for broker, count in lacks.items() if 100 * count > above_percentage * should[broker]}


def left_to_hand_over(image: ClusterImage, broker_id: BrokerId) -> int:
    """Returns how many leaderships of a stopping broker another one could take. At 0 there is nothing left to wait
    for."""
    active = Liveness.of(image.brokers).active - {broker_id}
    return sum(
        not active.isdisjoint(partition.isr)
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader == broker_id
    )


def awaited_brokers(image: ClusterImage) -> Work[Counter[BrokerId]]:
    """Returns the brokers that partitions without a leader wait for, with the number of these partitions.

    An undecided partition waits for all of its brokers, any other one for one of them.
    """
    brokers = Liveness.of(image.brokers)
    counts: Counter[BrokerId] = Counter()
    for topic in image.topics.values():
        for some in _parts(topic):
            counts.update(
                broker
                for partition in some
                if partition.leader == NO_LEADER
                for broker in (missing(partition, brokers) if partition.is_undecided else frozenset(partition.isr))
                if broker not in brokers.live
            )
            yield
    return counts


def describe(before: Iterable[TopicRecord], after: Iterable[TopicRecord]) -> Work[str]:
    """Describes the decisions in numbers, for the log. Names partitions that may have lost records."""
    counts: Counter[str] = Counter()
    lost: list[str] = []
    for old, new in zip(before, after, strict=True):
        yield
        for index, (was, now) in enumerate(zip(old.partitions, new.partitions, strict=True)):
            if index % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                yield
            if was is now:
                continue
            counts["partitions changed"] += 1
            if now.leader == NO_LEADER != was.leader:
                counts["without a leader"] += 1
            elif now.leader != was.leader:
                counts["new leaders"] += 1
            counts["left an ISR"] += len(set(was.isr) - set(now.isr))
            counts["reassigned"] += was.is_reassigning and not now.is_reassigning
            if not set(now.isr) <= set(was.isr):
                lost.append(str(TopicPartition(new.name, index)))
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    if lost:
        more = f" and {len(lost) - 10} more" if len(lost) > 10 else ""
        text += f"; leaders that may lack committed records: {', '.join(lost[:10])}{more}"
    return text
