"""The ends of partitions that any broker may lead, for the lag of share groups. Kafka: PartitionMetadataClient."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.client.errors import ClientError
from skep.coordination.partition_leaders import PartitionLeaders, PeerRequests
from skep.metadata.model import BrokerRecord
from skep.replication.replica_manager import ReplicaManager
from skep.wire.apis import LIST_OFFSETS

LATEST = -1
_CONSUMER, _READ_UNCOMMITTED, _ANY_EPOCH = -1, 0, -1

Found = int | ErrorCode
"""The high watermark, or why it is not known."""


class LatestOffsets:
    """Reads the high watermarks of partitions that are led here, and asks the other leaders, each once a call."""

    def __init__(self, leaders: PartitionLeaders, replicas: ReplicaManager, peers: PeerRequests) -> None:
        self._leaders = leaders
        self._replicas = replicas
        self._peers = peers

    async def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Found]:
        found: dict[TopicPartition, Found] = {}
        elsewhere: dict[BrokerRecord, list[TopicPartition]] = {}
        for partition in partitions:
            try:
                broker = self._leaders.elsewhere(partition)
                if broker is None:
                    found[partition] = self._here(partition)
                else:
                    elsewhere.setdefault(broker, []).append(partition)
            except KafkaError as error:
                found[partition] = error.code
            except StorageError:
                found[partition] = ErrorCode.kafka_storage_error
        for asked in await asyncio.gather(*(self._ask(broker, some) for broker, some in elsewhere.items())):
            found.update(asked)
        return found

    def _here(self, topic_partition: TopicPartition) -> int:
        partition = self._replicas.partition(topic_partition.topic, topic_partition.partition)
        partition.check_leader_epoch(_ANY_EPOCH)
        partition.check_leads()
        partition.check_knows_committed()
        return partition.high_watermark

    async def _ask(self, broker: BrokerRecord, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Found]:
        by_topic: dict[str, list[int]] = {}
        for topic, index in partitions:
            by_topic.setdefault(topic, []).append(index)
        body = {
            "replica_id": _CONSUMER,
            "isolation_level": _READ_UNCOMMITTED,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": index, "current_leader_epoch": _ANY_EPOCH, "timestamp": LATEST}
                        for index in indexes
                    ],
                }
                for topic, indexes in by_topic.items()
            ],
        }
        unknown = dict.fromkeys(partitions, ErrorCode.leader_not_available)
        try:
            response = await self._peers.ask(broker, LIST_OFFSETS, body)
        except (ClientError, KafkaError):
            return unknown
        return {
            **unknown,
            **{
                TopicPartition(topic.name, partition.partition_index): partition.offset
                if partition.error_code is ErrorCode.none
                else partition.error_code
                for topic in response.topics
                for partition in topic.partitions
            },
        }
