"""Who leads a partition now, for those who asked the wrong broker (KIP-951), and who the controller is."""

from collections.abc import Iterable
from uuid import UUID

from skep.base.errors import ErrorCode
from skep.base.ids import BrokerId
from skep.broker.services import Services
from skep.metadata.model import NO_LEADER
from skep.wire.leader_hints import NodeEndpoint

NO_CONTROLLER = BrokerId(-1)

Leader = tuple[int, int]
"""Its id and epoch."""

_CAN_BE_HELPED = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


def current_leader(services: Services, topic: str | UUID, index: int, code: ErrorCode) -> Leader | None:
    """The leader as far as this broker knows, for a refusal with ``code``; None where that would not help."""
    if code not in _CAN_BE_HELPED:
        return None
    image = services.catalog.image
    record = image.topics_by_id.get(topic) if isinstance(topic, UUID) else image.topics.get(topic)
    if record is None or not 0 <= index < len(record.partitions):
        return None
    partition = record.partitions[index]
    return None if partition.leader == NO_LEADER else (partition.leader, partition.leader_epoch)


def endpoints_of(services: Services, leaders: Iterable[Leader | None]) -> list[NodeEndpoint]:
    """Where these leaders are reached."""
    brokers = services.catalog.image.brokers
    ids = sorted({BrokerId(leader[0]) for leader in leaders if leader is not None})
    return [
        NodeEndpoint(broker.id, broker.host, broker.port, broker.rack)
        for broker_id in ids
        if (broker := brokers.get(broker_id)) is not None
    ]


def controller_id(services: Services) -> BrokerId:
    """The controller; -1 while there is none, as Kafka says it. A broker alone is its own, also before it knows."""
    image = services.catalog.image
    found = image.controller
    if found is not None and found.broker_id in image.brokers:
        return found.broker_id
    return services.node.id if set(image.brokers) <= {services.node.id} else NO_CONTROLLER
