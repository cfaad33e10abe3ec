"""Looks up the leader of a partition, for coordinators that send requests to it."""

from collections.abc import Callable
from typing import Any, Protocol

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, TopicPartition
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord
from skep.wire.apis import Api
from skep.wire.codec import Body


class PeerRequests(Protocol):
    """What coordinators need of ``Peers``: the response of another broker. Raises ClientError when there is none."""

    async def ask(self, broker: BrokerRecord, api: Api, body: Body, *, version: int | None = None) -> Any: ...


class PartitionLeaders:
    """Looks up leaders in the current image."""

    def __init__(self, node_id: BrokerId, image: Callable[[], ClusterImage]) -> None:
        self._node_id = node_id
        self._image = image

    def elsewhere(self, partition: TopicPartition) -> BrokerRecord | None:
        """Returns the broker that leads the partition, or None if it is this one.

        Raises UNKNOWN_TOPIC_OR_PARTITION when there is no such partition, LEADER_NOT_AVAILABLE while it has no leader.
        """
        image = self._image()
        topic = image.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"partition {partition} does not exist")
        leader = topic.partitions[partition.partition].leader
        if leader == self._node_id:
            return None
        broker = image.brokers.get(leader)
        if broker is None:
            raise KafkaError(ErrorCode.leader_not_available, f"partition {partition} has no leader now")
        return broker
