"""Topics as requests make and see them: where replicas go, what is refused, how partitions are described."""

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Work
from skep.broker.services import Services
from skep.controller import placement
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord

INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})

USE_DEFAULT = -1
PLACED_PER_STEP = 100


def alive_brokers(services: Services) -> Mapping[BrokerId, BrokerRecord]:
    """The brokers that are registered, and this one: it is alive whatever the metadata store says of its session."""
    return {**services.catalog.image.brokers, services.node.id: services.node}


@contextlib.contextmanager
def room_for(services: Services, count: int) -> Iterator[None]:
    """Refuses partitions beyond ``skep.max.partitions``; holds the room for ``count`` of them while the context lasts.

    POLICY_VIOLATION, as Kafka answers too many partitions in a request: the number is a good one, it is this cluster
    that does not allow it, and asking again will not help.
    """
    # Held, not just checked: a hundred requests in a pipeline all pass a check before the first of them is done.
    counted = services.partition_count
    held = counted.held(services.catalog.image)
    if held + count > services.config.max_partitions:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"{count} more partition(s) would be too many: there are {held}, and skep.max.partitions is "
            f"{services.config.max_partitions}.",
        )
    counted.in_the_making += count
    try:
        yield
    finally:
        counted.in_the_making -= count


def place(
    services: Services, count: int, replication_factor: int, *, growing: TopicRecord | None = None
) -> Work[list[list[BrokerId]]]:
    """Replicas for ``count`` partitions of a new topic, or of one that is ``growing``."""
    image = services.catalog.image
    # What the image says of this broker comes first here: it knows whether it is stopping.
    brokers = {services.node.id: services.node, **image.brokers}.values()
    after = None if growing is None else growing.partitions[-1].replicas[0]
    start = services.partition_count.held(image)
    placed: list[list[BrokerId]] = []
    while True:
        number = min(PLACED_PER_STEP, count - len(placed))
        placed += placement.place(brokers, number, replication_factor, start=start + len(placed), after=after)
        if len(placed) == count:
            return placed
        after = placed[-1][0]
        yield


def check_assignment(
    services: Services,
    replicas: Sequence[BrokerId],
    replication_factor: int | None,
    *,
    held_by: Container[BrokerId] = (),
) -> None:
    """INVALID_REPLICA_ASSIGNMENT for what a client may not choose by hand.

    ``held_by`` has the replicas of a partition that there is already; they may stay while they are away.
    """
    alive = alive_brokers(services)
    problem = None
    if not replicas:
        problem = "an empty replica list"
    elif unknown := [broker for broker in replicas if broker not in alive and broker not in held_by]:
        problem = f"broker {unknown[0]}, but no such broker is registered"
    elif len(set(replicas)) < len(replicas):
        problem = f"a broker more than once: {list(replicas)}"
    elif replication_factor is not None and len(replicas) != replication_factor:
        problem = (
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {replication_factor} replica(s)"
        )
    if problem is not None:
        raise KafkaError(ErrorCode.invalid_replica_assignment, f"The manual partition assignment includes {problem}.")


async def auto_create(services: Services, name: str) -> None:
    """Makes a topic that somebody asked for, with the defaults; it may have come into being in the meantime."""
    count = services.config.num_partitions
    # Before the room is counted, so that a bad name is told as that.
    services.catalog.check_new_topic(name)
    with room_for(services, count):
        placing = place(services, count, services.config.default_replication_factor)
        assignments = await services.slicer.finish(placing)
        try:
            await services.catalog.create_topic(name, assignments)
        except KafkaError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise


def describe_partitions(
    partitions: Iterable[tuple[int, PartitionRecord]], alive: Mapping[BrokerId, BrokerRecord]
) -> list[dict[str, Any]]:
    """Numbered partitions as Metadata and DescribeTopicPartitions show them; one without a live leader says so."""
    return [
        {
            "error_code": ErrorCode.none if partition.leader in alive else ErrorCode.leader_not_available,
            "partition_index": index,
            "leader_id": partition.leader if partition.leader in alive else NO_LEADER,
            "leader_epoch": partition.leader_epoch,
            "replica_nodes": partition.replicas,
            "isr_nodes": partition.isr,
            "offline_replicas": [broker for broker in partition.replicas if broker not in alive],
        }
        for index, partition in partitions
    ]
