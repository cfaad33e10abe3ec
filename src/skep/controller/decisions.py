"""What the controller decides over the whole cluster: from an image, the topics that are to be written.

Linear in the number of partitions, and next to nothing for those that stay as they are: the whole cluster is looked
over whenever a broker comes or goes, which is simpler than knowing what each broker holds, and cannot forget anything.
With 20,000 partitions that takes a tenth of a second when a broker dies, so the work is done in slices
(``base/loop/slicer.py``). An image never changes, so a slice sees what the one before it saw.
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
"""Whether a topic would rather lose records than be without a leader."""


def is_unclean(topic: TopicRecord, default: bool) -> bool:
    text = topic.config.get(UNCLEAN_OPTION)
    return default if text is None else text == "true"


def decided(partition: PartitionRecord, brokers: Liveness, *, unclean: bool) -> PartitionRecord:
    """With a leader if there can be one, and moved if that is done; the very same record when nothing is to be done."""
    after = settled(partition, brokers, unclean=unclean)
    return finished(after, brokers) if after.adding or after.removing else after


def changed_topics(
    image: ClusterImage, topics: Iterable[TopicRecord], is_unclean: IsUnclean
) -> Work[list[TopicRecord]]:
    """Those of ``topics`` in which something has to change, changed."""
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
    """The topics whose leaders go back to the first replica, of all or ``only`` these.

    A broker is given its leaderships back when it lacks more than ``above_percentage`` of those it should have.
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
    """The partitions of a topic, as many at a time as one step may take."""
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
    """How many leaderships a broker that stops still has that another could take; at 0 waiting on helps nobody."""
    active = Liveness.of(image.brokers).active - {broker_id}
    return sum(
        not active.isdisjoint(partition.isr)
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader == broker_id
    )


def waited_for(image: ClusterImage) -> Work[Counter[BrokerId]]:
    """The brokers that partitions without a leader wait for, and how many of them for each.

    An undecided one waits for all of them, another one for any.
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
    """What was decided, in numbers and for the log; partitions that lost records are named."""
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
        text += f"; leaders that may lack records: {', '.join(lost[:10])}{more}"
    return text
