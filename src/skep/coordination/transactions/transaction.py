"""One transactional id: its producer, and the state of its transaction.

A ``Transaction`` is immutable. Each method that changes the state returns a new one, which is written to the log as it
is. These methods are the only places with transitions, and they check them against the table ``NEXT``.

Epochs count up to 32767. The last epoch is never given to a producer, so that there is always one left to fence it
with; a producer with epoch 32766 gets a new producer id instead of another epoch. When it ends a transaction of v2, the
markers carry epoch 32767, and the new id is ``next_producer_id`` until they are written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_PRODUCER_ID, TopicPartition
from skep.coordination.shard import CoordinatorRecord, ProducerStamp
from skep.coordination.transaction_records import TransactionLogKey, TransactionLogValue, TransactionPartitions
from skep.coordination.transactions.transaction_state import COMPLETION, ENDED, NEXT, State

HIGHEST_EPOCH = 0x7FFF
NO_EPOCH = -1
NO_TIME = -1
V2 = 2
"""The transaction version in which each transaction has an epoch of its own (KIP-890). Kafka's number."""


def is_exhausted(epoch: int) -> bool:
    return epoch >= HIGHEST_EPOCH - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """``partitions`` belong to the current transaction; ``start_ms`` is -1 before the first partition is added."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition]
    start_ms: int
    update_ms: int
    next_producer_id: int = NO_PRODUCER_ID
    version: int = 0
    """The version that the client used last: ``V2``, or 0 for all before."""

    # Transitions.

    def with_producer(self, producer: ProducerStamp, timeout_ms: int, now_ms: int) -> "Transaction":
        """InitProducerId: there is no open transaction, and this producer may begin one."""
        return self._to(
            State.EMPTY,
            now_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )

    def with_partitions(self, partitions: frozenset[TopicPartition], version: int, now_ms: int) -> "Transaction":
        if self.state is State.ONGOING:
            return self._to(
                State.ONGOING, now_ms, partitions=self.partitions | partitions, version=max(self.version, version)
            )
        return self._to(State.ONGOING, now_ms, partitions=partitions, start_ms=now_ms, version=version)

    def prepared(self, state: State, now_ms: int) -> "Transaction":
        """The decision before v2: the epoch stays, so a producer with the epoch before it remains fenced."""
        return self._to(state, now_ms, version=0)

    def prepared_v2(self, state: State, next_producer_id: int, now_ms: int) -> "Transaction":
        """The decision in v2: the markers have the producer's next epoch. ``next_producer_id`` is for a producer whose
        epochs are exhausted."""
        return self._to(
            state,
            now_ms,
            producer_epoch=min(self.producer_epoch + 1, HIGHEST_EPOCH),
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            version=V2,
        )

    def fenced(self, now_ms: int) -> "Transaction":
        """Aborts the transaction and fences its producer: markers with a higher epoch keep out records that it may
        still send."""
        return self._to(State.PREPARE_ABORT, now_ms, producer_epoch=min(self.producer_epoch + 1, HIGHEST_EPOCH))

    def completed(self, now_ms: int) -> "Transaction":
        return self._to(
            COMPLETION[self.state],
            now_ms,
            producer_id=self.successor.producer_id,
            producer_epoch=self.successor.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
        )

    def _to(self, state: State, now_ms: int, **changes: Any) -> "Transaction":
        if state not in NEXT[self.state]:
            raise RuntimeError(f"transactional id {self.transactional_id!r}: {state.label} after {self.state.label}")
        return replace(self, state=state, update_ms=now_ms, previous_producer_id=self.producer_id, **changes)

    # Questions.

    @property
    def producer(self) -> ProducerStamp:
        return ProducerStamp(self.producer_id, self.producer_epoch)

    @property
    def successor(self) -> ProducerStamp:
        """The producer once the decided transaction is complete."""
        return self.producer if self.next_producer_id == NO_PRODUCER_ID else ProducerStamp(self.next_producer_id, 0)

    def was_ended_by(self, producer: ProducerStamp) -> bool:
        """Whether ``producer`` is the current one with the epoch that it had in the last transaction, which was of
        v2."""
        if self.version < V2 or self.state not in ENDED:
            return False
        if producer.producer_id == self.producer_id:
            return producer.producer_epoch == self.producer_epoch - 1
        has_new_id = self.producer_epoch == 0 and producer.producer_id == self.previous_producer_id
        return has_new_id and producer.producer_epoch == HIGHEST_EPOCH - 1

    @property
    def is_ending(self) -> bool:
        """The transaction is decided, and its markers are being written."""
        return self.state in COMPLETION

    def has_timed_out(self, now_ms: int) -> bool:
        return self.state is State.ONGOING and self.start_ms + self.timeout_ms < now_ms

    def check_producer(self, producer: ProducerStamp) -> None:
        """Raises INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED unless this is the current producer, or its
        successor."""
        if producer == self.successor:
            return
        if producer.producer_id != self.producer_id:
            raise KafkaError(
                ErrorCode.invalid_producer_id_mapping,
                f"the producer id of {self.transactional_id!r} is {self.producer_id}, not {producer.producer_id}",
            )
        if producer.producer_epoch != self.producer_epoch:
            raise KafkaError(
                ErrorCode.producer_fenced,
                f"producer {self.producer_id} has epoch {self.producer_epoch}; {producer.producer_epoch} is fenced",
            )

    # The log record.

    @property
    def record(self) -> CoordinatorRecord:
        partitions = tuple(
            TransactionPartitions(topic=topic, partition_ids=tuple(indexes))
            for topic, indexes in by_topic(self.partitions).items()
        )
        value = TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=int(self.state),
            transaction_partitions=None if self.state is State.EMPTY else partitions,
            transaction_last_update_timestamp_ms=self.update_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=self.version,
        )
        return CoordinatorRecord(TransactionLogKey(transactional_id=self.transactional_id), value)

    @classmethod
    def of(cls, key: TransactionLogKey, value: TransactionLogValue) -> "Transaction":
        """The inverse of ``record``."""
        return cls(
            key.transactional_id,
            value.producer_id,
            value.previous_producer_id,
            value.producer_epoch,
            value.transaction_timeout_ms,
            State(value.transaction_status),
            frozenset(_partitions(value.transaction_partitions or ())),
            value.transaction_start_timestamp_ms,
            value.transaction_last_update_timestamp_ms,
            value.next_producer_id,
            value.client_transaction_version,
        )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns topics with their partitions, sorted. Sorting pairs would take ten times as long, and there may be very
    many."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return {topic: sorted(topics[topic]) for topic in sorted(topics)}


def in_order(partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
    for topic, indexes in by_topic(partitions).items():
        for index in indexes:
            yield TopicPartition(topic, index)


def _partitions(topics: Iterable[TransactionPartitions]) -> Iterable[TopicPartition]:
    for topic in topics:
        for index in topic.partition_ids:
            yield TopicPartition(topic.topic, index)


def new_transaction(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """The state of a transactional id that is used for the first time."""
    return Transaction(transactional_id, producer_id, -1, 0, timeout_ms, State.EMPTY, frozenset(), NO_TIME, now_ms)
