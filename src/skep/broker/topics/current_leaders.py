"""The current leader of a partition, for clients that asked the wrong broker (KIP-951), and the controller."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from skep.base.errors import ErrorCode
from skep.base.ids import BrokerId
from skep.broker.services import Services
from skep.broker.topics.topic_creation import alive_brokers
from skep.metadata.model import NO_LEADER, BrokerRecord
from skep.wire.leader_hints import NodeEndpoint

NO_CONTROLLER = BrokerId(-1)

Leader = tuple[int, int]
"""Broker id and leader epoch."""

_HAS_LEADER_HINT = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


def current_leader(services: Services, topic: str | UUID, index: int, code: ErrorCode) -> Leader | None:
    """Returns the leader that this broker knows, for a refusal with ``code``; None if the code has no such hint."""
    if code not in _HAS_LEADER_HINT:
        return None
    image = services.catalog.image
    record = image.topics_by_id.get(topic) if isinstance(topic, UUID) else image.topics.get(topic)
    if record is None or not 0 <= index < len(record.partitions):
        return None
    partition = record.partitions[index]
    return None if partition.leader == NO_LEADER else (partition.leader, partition.leader_epoch)


def brokers_at(services: Services, listener: str) -> Mapping[BrokerId, BrokerRecord]:
    """Returns the live brokers with their addresses at the listener that a client uses.

    A broker without this listener is left out, as in Kafka: the client could not reach it. An empty name stands for the
    listener that brokers use among themselves.
    """
    alive = alive_brokers(services)
    if not listener:
        return alive
    return {key: found for key, broker in alive.items() if (found := broker.at(listener)) is not None}


def endpoints_of(services: Services, leaders: Iterable[Leader | None], listener: str) -> list[NodeEndpoint]:
    """Returns the addresses of the leaders, for a client of this listener."""
    ids = sorted({BrokerId(leader[0]) for leader in leaders if leader is not None})
    brokers = brokers_at(services, listener) if ids else {}
    return [
        NodeEndpoint(broker.id, broker.host, broker.port, broker.rack)
        for broker_id in ids
        if (broker := brokers.get(broker_id)) is not None
    ]


def controller_id(services: Services) -> BrokerId:
    """Returns the controller, or -1 as in Kafka while there is none. A single broker is its own controller."""
    image = services.catalog.image
    found = image.controller
    if found is not None and found.broker_id in image.brokers:
        return found.broker_id
    return services.node.id if set(image.brokers) <= {services.node.id} else NO_CONTROLLER
