"""Writes the markers that end a transaction in its partitions."""

from asyncio import Future
from typing import Any, Protocol

from skep.base.ids import TopicPartition
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.partition_leaders import PartitionLeaders
from skep.coordination.partitions import Partitions
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.remote_markers import Marker, RemoteMarkers
from skep.coordination.transactions.verification_guards import VerificationGuards


class Markers(Protocol):
    """What a shard needs from the rest of the broker. A returned future is done when the step is; None means now."""

    def committed(self, index: int) -> "Future[None] | None":
        """Returns when everything written to this partition of ``__transaction_state`` is committed.

        Raises StorageError or KafkaError when that is unknown.
        """
        ...

    def write(
        self,
        index: int,
        partition: TopicPartition,
        producer: ProducerStamp,
        *,
        is_committed: bool,
        raises_epoch: bool,
    ) -> "Future[None] | None":
        """Ends the producer's transaction in ``partition``, on behalf of the coordinator of partition ``index``.

        ``raises_epoch``: the transaction is of v2, and ``producer`` has the epoch of the next one.

        Raises, or fails the future with, KafkaError when the partition refuses the marker and StorageError when its
        disk does. UNKNOWN_TOPIC_OR_PARTITION is raised when the topic is deleted; an error of the future may be
        transient. A marker for a transaction that has already ended changes nothing.
        """
        ...

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        """Returns whether the producer has an open transaction in ``partition``, which this broker leads.

        Called for partitions whose refusal was raised. Raises what ``write`` raises.
        """
        ...


class MarkerWriter:
    """Writes markers to the leader of each partition: directly on this broker, by request on others.

    Without ``leaders`` and ``remote`` this broker is the only one.
    """

    def __init__(
        self,
        topic: str,
        partitions: Partitions,
        groups: CoordinatorRuntime[Any],
        guards: VerificationGuards | None = None,
        leaders: PartitionLeaders | None = None,
        remote: RemoteMarkers | None = None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._groups = groups
        self._guards = guards
        self._leaders = leaders
        self._remote = remote

    def committed(self, index: int) -> "Future[None] | None":
        return self._partitions.partition(self._topic, index).committed()

    def write(
        self,
        index: int,
        partition: TopicPartition,
        producer: ProducerStamp,
        *,
        is_committed: bool,
        raises_epoch: bool,
    ) -> "Future[None] | None":
        # The coordinator epoch is the leader epoch of the coordinator's partition: a partition that has seen a marker
        # of a newer coordinator refuses the markers of an older one.
        coordinator_epoch = self._partitions.partition(self._topic, index).leader_epoch
        if self._leaders is not None and (broker := self._leaders.elsewhere(partition)) is not None:
            assert self._remote is not None
            return self._remote.write(
                broker, partition, Marker(producer, coordinator_epoch, is_committed, raises_epoch)
            )
        committed = self._write_here(partition, Marker(producer, coordinator_epoch, is_committed, raises_epoch))
        if self._guards is not None:
            self._guards.marker_written(partition, producer.producer_id, raises_epoch=raises_epoch)
        return committed

    def _write_here(self, partition: TopicPartition, marker: Marker) -> "Future[None] | None":
        producer, coordinator_epoch, is_committed, raises_epoch = marker
        if partition.topic == self._groups.topic:
            return self._groups.end_transaction(
                partition.partition,
                producer,
                coordinator_epoch,
                is_committed=is_committed,
                raises_epoch=raises_epoch,
            )
        _, committed = self._partitions.partition(*partition).append_marker(
            *producer, coordinator_epoch, is_committed, raises_epoch=raises_epoch
        )
        return committed

    def is_open(self, partition: TopicPartition, producer_id: int) -> bool:
        return producer_id in self._partitions.partition(*partition).log.producers.transactions.ongoing
