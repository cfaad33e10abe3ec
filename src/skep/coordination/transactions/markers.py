"""Writing the markers that end a transaction in the partitions it has written to."""

from asyncio import Future
from typing import Any, Protocol

from skep.base.ids import TopicPartition
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.partition_leaders import Leaders
from skep.coordination.partitions import Partitions
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.remote_markers import Ended, RemoteMarkers
from skep.coordination.transactions.verification_guards import Guards


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

        KafkaError is the partition's refusal, StorageError its disk's, raised here or by the future.
        UNKNOWN_TOPIC_OR_PARTITION is raised here when the topic is deleted; what the future fails with may pass. Where
        the transaction has ended before, another marker changes nothing.
        """
        ...

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether the producer's transaction waits for a marker in ``partition``, which is led here.

        Asked of one whose refusal was raised; raises what ``write`` does.
        """
        ...


class MarkerWriter:
    """Writes markers to the leader of each partition: to those of this broker itself, to others by request.

    Without ``leaders`` and ``remote`` this broker is the only one.
    """

    def __init__(
        self,
        topic: str,
        partitions: Partitions,
        groups: CoordinatorRuntime[Any],
        guards: Guards | None = None,
        leaders: Leaders | None = None,
        remote: RemoteMarkers | None = None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._groups = groups
        self._guards = guards
        self._leaders = leaders
        self._remote = remote

    def decided(self, index: int) -> "Future[None] | None":
        return self._partitions.partition(self._topic, index).committed()

    def write(
        self, index: int, partition: TopicPartition, producer: ProducerStamp, *, is_committed: bool
    ) -> "Future[None] | None":
        # The coordinator's epoch is that of the partition that it lives in: a partition that has heard of a newer
        # leader of that one refuses what an older one still sends.
        coordinator_epoch = self._partitions.partition(self._topic, index).leader_epoch
        if self._leaders is not None and (broker := self._leaders.elsewhere(partition)) is not None:
            assert self._remote is not None
            return self._remote.write(broker, partition, Ended(producer, coordinator_epoch, is_committed))
        committed = self._write_here(partition, producer, coordinator_epoch, is_committed)
        if self._guards is not None:
            self._guards.marker_written(partition, producer.producer_id)
        return committed

    def _write_here(
        self, partition: TopicPartition, producer: ProducerStamp, coordinator_epoch: int, is_committed: bool
    ) -> "Future[None] | None":
        if partition.topic == self._groups.topic:
            return self._groups.end_transaction(
                partition.partition, producer, coordinator_epoch, is_committed=is_committed
            )
        _, committed = self._partitions.partition(*partition).append_marker(
            producer.producer_id, producer.producer_epoch, coordinator_epoch, is_committed
        )
        return committed

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        return producer_id in self._partitions.partition(*partition).log.producers.transactions.ongoing
