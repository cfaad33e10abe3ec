"""Creation and description of topics: the limit of partitions, placement, checks of manual assignments."""

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
    """Returns the registered brokers and this one, which is alive even if its session in the store has ended."""
    return {**services.catalog.image.brokers, services.node.id: services.node}


@contextlib.contextmanager
def room_for(services: Services, count: int) -> Iterator[None]:
    """Counts ``count`` more partitions while the context lasts.

    Raises POLICY_VIOLATION beyond ``skep.max.partitions``, Kafka's code for too many partitions in a request: the
    number is valid but this cluster does not allow it, and a retry will not help.
    """
    # Counted, not just checked: a hundred pipelined requests would all pass a check before the first of them is done.
    counted = services.partition_count
    held = counted.held(services.catalog.image)
    if held + count > services.config.max_partitions:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"{count} more partition(s) would exceed skep.max.partitions={services.config.max_partitions}; "
            f"there are {held}.",
        )
    counted.being_created += count
    try:
        yield
    finally:
        counted.being_created -= count


def place(
    services: Services, count: int, replication_factor: int, *, growing: TopicRecord | None = None
) -> Work[list[list[BrokerId]]]:
    """Returns the replicas of ``count`` partitions of a new topic, or of a topic that is ``growing``."""
    image = services.catalog.image
    # The image's record of this broker takes precedence: it has the current ``stopping``.
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
    """Raises INVALID_REPLICA_ASSIGNMENT if a client may not choose these replicas.

    ``held_by`` has the replicas of an existing partition; they may remain while their brokers are away.
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


async def auto_create(services: Services, name: str, config: Mapping[str, str] | None = None) -> None:
    """Creates a topic with the default options but for those in ``config``, unless it exists by now."""
    count = services.config.num_partitions
    # Before the partitions are counted, so that an invalid name has its own error.
    services.catalog.check_new_topic(name)
    with room_for(services, count):
        placing = place(services, count, services.config.default_replication_factor)
        assignments = await services.slicer.finish(placing)
        try:
            await services.catalog.create_topic(name, assignments, config)
        except KafkaError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise


def describe_partitions(
    partitions: Iterable[tuple[int, PartitionRecord]], alive: Mapping[BrokerId, BrokerRecord]
) -> list[dict[str, Any]]:
    """Describes numbered partitions for Metadata and DescribeTopicPartitions.

    A partition without a live leader has LEADER_NOT_AVAILABLE.
    """
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
