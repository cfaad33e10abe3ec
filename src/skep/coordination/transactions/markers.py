"""Writing the markers that end a transaction in the partitions it has written to."""

from asyncio import Future
from typing import Any, Protocol

from skep.base.ids import TopicPartition
from skep.coordination.partitions import Partitions
from skep.coordination.runtime import CoordinatorRuntime
from skep.coordination.shard import ProducerStamp


class Markers(Protocol):
    """What a shard needs of the rest of the broker. A future given back says when; None: at once."""

    def decided(self, index: int) -> "Future[None] | None":
        """When all that has been written to this partition of ``__transaction_state`` can no longer be lost.

        StorageError or KafkaError when that cannot be said.
        """
        ...

    def write(
        self, index: int, partition: TopicPartition, producer: ProducerStamp, *, is_committed: bool
    ) -> "Future[None] | None":
        """Ends the producer's transaction in ``partition``, for the coordinator of partition ``index``.

        KafkaError is the partition's refusal, StorageError its disk's. Where the transaction has ended before, another
        marker changes nothing.
        """
        ...

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether the producer's transaction in ``partition`` waits for a marker. Raises what ``write`` does."""
        ...


class MarkerWriter:
    """Writes markers to the partitions of this broker, which are all there are."""

    def __init__(self, topic: str, partitions: Partitions, groups: CoordinatorRuntime[Any]) -> None:
        self._topic = topic
        self._partitions = partitions
        self._groups = groups

    def decided(self, index: int) -> "Future[None] | None":
        return self._partitions.partition(self._topic, index).committed()

    def write(
        self, index: int, partition: TopicPartition, producer: ProducerStamp, *, is_committed: bool
    ) -> "Future[None] | None":
        # The coordinator's epoch is that of the partition that it lives in: a partition that has heard of a newer
        # leader of that one refuses what an older one still sends.
        coordinator_epoch = self._partitions.partition(self._topic, index).leader_epoch
        if partition.topic == self._groups.topic:
            return self._groups.end_transaction(
                partition.partition, producer, coordinator_epoch, is_committed=is_committed
            )
        _, synced = self._partitions.partition(*partition).append_marker(
            producer.producer_id, producer.producer_epoch, coordinator_epoch, is_committed
        )
        return synced

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        return producer_id in self._partitions.partition(*partition).log.producers.transactions.ongoing
