"""The ends of partitions: read here, or asked of their leaders, each once; what is not known is an error code."""

import asyncio
from types import SimpleNamespace
from typing import Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import BrokerId, TopicPartition
from skep.broker.cluster.latest_offsets import LatestOffsets
from skep.client.errors import Unreachable
from skep.metadata.model import BrokerRecord

NEAR, FAR = BrokerRecord(BrokerId(2), "near", 1), BrokerRecord(BrokerId(3), "far", 1)
HERE, BROKEN, NEWS, THERE, LOST, NOBODY = (TopicPartition("t", number) for number in range(6))


class Leaders:
    def elsewhere(self, partition: TopicPartition) -> BrokerRecord | None:
        if partition == NOBODY:
            raise KafkaError(ErrorCode.leader_not_available)
        return {THERE: NEAR, TopicPartition("u", 0): NEAR, LOST: FAR}.get(partition)


class Replicas:
    def partition(self, topic: str, index: int) -> Any:
        if index == BROKEN.partition:
            raise StorageError("the disk is gone")

        def knows() -> None:
            if index == NEWS.partition:
                raise KafkaError(ErrorCode.offset_not_available)

        return SimpleNamespace(
            high_watermark=7,
            check_leader_epoch=lambda epoch: None,
            check_leads=lambda: None,
            check_knows_committed=knows,
        )


class Peers:
    def __init__(self) -> None:
        self.asked: list[BrokerRecord] = []

    async def ask(self, broker: BrokerRecord, api: Any, body: Any, *, version: int | None = None) -> Any:
        self.asked.append(broker)
        if broker is FAR:
            raise Unreachable("far is away")
        topics = [
            SimpleNamespace(
                name=topic["name"],
                partitions=[
                    SimpleNamespace(
                        partition_index=one["partition_index"],
                        error_code=ErrorCode.none if topic["name"] == "t" else ErrorCode.not_leader_or_follower,
                        offset=9,
                    )
                    for one in topic["partitions"]
                ],
            )
            for topic in body["topics"]
        ]
        return SimpleNamespace(topics=topics)


def test_every_partition_has_its_end_or_a_code():
    peers = Peers()
    offsets = LatestOffsets(Leaders(), Replicas(), peers)  # type: ignore[arg-type]
    wanted = [HERE, BROKEN, NEWS, THERE, TopicPartition("u", 0), LOST, NOBODY]
    assert asyncio.run(offsets.of(wanted)) == {
        HERE: 7,
        BROKEN: ErrorCode.kafka_storage_error,
        NEWS: ErrorCode.offset_not_available,
        THERE: 9,
        TopicPartition("u", 0): ErrorCode.not_leader_or_follower,
        LOST: ErrorCode.leader_not_available,
        NOBODY: ErrorCode.leader_not_available,
    }
    assert sorted(broker.id for broker in peers.asked) == [2, 3]
