"""Who leads a partition, as this broker knows it, for coordinators that have something to ask of the leader."""

from collections.abc import Callable
from typing import Any, Protocol

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, TopicPartition
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord
from skep.wire.apis import Api
from skep.wire.codec import Body


class AsksBrokers(Protocol):
    """What coordinators need of ``client.peers.Peers``: another broker's answer; ClientError when there is none."""

    async def ask(self, broker: BrokerRecord, api: Api, body: Body, *, version: int | None = None) -> Any: ...


class Leaders:
    """Looks it up in the image of that moment."""

    def __init__(self, node_id: BrokerId, image: Callable[[], ClusterImage]) -> None:
        self._node_id = node_id
        self._image = image

    def elsewhere(self, partition: TopicPartition) -> BrokerRecord | None:
        """The broker to be asked; None: this one leads.

        UNKNOWN_TOPIC_OR_PARTITION when there is no such partition, LEADER_NOT_AVAILABLE while nobody leads it.
        """
        image = self._image()
        topic = image.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no partition {partition}")
        leader = topic.partitions[partition.partition].leader
        if leader == self._node_id:
            return None
        broker = image.brokers.get(leader)
        if broker is None:
            raise KafkaError(ErrorCode.leader_not_available, f"nobody leads {partition} now")
        return broker
