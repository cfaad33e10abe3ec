"""Guards against a transaction that ends while its coordinator, on another broker, verifies a partition of it.

The verification takes a while, and the transaction may end meanwhile: its marker is written to the partition, and a
batch that is appended afterwards, because of the verification, would begin a transaction that nothing ends. So each
verification has a guard, and the marker breaks it. The guard also holds a place in the order: while a batch of a
producer waits for a partition, the batches after it have to wait too, or their sequence numbers would be out of order.
(Kafka: VerificationGuard, KIP-890.)

A producer that the partition does not know yet may begin with any sequence number. So batches that were refused for a
transient reason are remembered: the batches that were in flight behind such a batch must not overtake its retry.
"""

from collections import OrderedDict

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, TopicPartition
from skep.coordination.shard import ProducerStamp

MOST_REFUSED = 10_000
_NO_SEQUENCE = -1

_Key = tuple[TopicPartition, int]


class VerificationGuard:
    """One batch that waits for verification. ``refusal`` is the result; None means that the batch may be appended.

    ``adds``: the partition is added to the transaction, if it does not belong to it yet (transactions v2).
    """

    __slots__ = ("_is_broken", "adds", "leader_epoch", "partition", "producer", "refusal")

    def __init__(
        self, partition: TopicPartition, producer: ProducerStamp, leader_epoch: LeaderEpoch, *, adds: bool = False
    ) -> None:
        self.partition = partition
        self.producer = producer
        self.leader_epoch = leader_epoch
        self.adds = adds
        self.refusal: KafkaError | None = KafkaError(ErrorCode.not_enough_replicas, "the transaction was not verified")
        self._is_broken = False

    @property
    def key(self) -> _Key:
        return self.partition, self.producer.producer_id

    def break_open(self) -> None:
        self._is_broken = True

    def check(self, leader_epoch: LeaderEpoch) -> None:
        """Raises the coordinator's refusal, or NOT_ENOUGH_REPLICAS when the verification may be out of date.

        In another leader epoch a marker may have been written that this broker has not seen.
        """
        if self.refusal is not None:
            raise self.refusal
        if self._is_broken or leader_epoch != self.leader_epoch:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"a transaction of the producer ended in {self.partition} during verification; send the batch again",
            )


class VerificationGuards:
    """The guards of this broker's partitions, and the lowest refused sequence number per partition and producer.

    Between calls each guard that was begun and not released is here, broken or not.
    """

    def __init__(self) -> None:
        self._guards: dict[_Key, set[VerificationGuard]] = {}
        self._refused: OrderedDict[tuple[TopicPartition, ProducerStamp], int] = OrderedDict()

    def begin(
        self, partition: TopicPartition, producer: ProducerStamp, leader_epoch: LeaderEpoch, *, adds: bool = False
    ) -> VerificationGuard:
        guard = VerificationGuard(partition, producer, leader_epoch, adds=adds)
        self._guards.setdefault(guard.key, set()).add(guard)
        return guard

    def release(self, guard: VerificationGuard) -> None:
        guards = self._guards.get(guard.key)
        if guards is not None:
            guards.discard(guard)
            if not guards:
                del self._guards[guard.key]

    def is_waiting(self, partition: TopicPartition, producer_id: int) -> bool:
        """Returns whether a batch of the producer waits for verification in this partition."""
        return bool(self._guards) and (partition, producer_id) in self._guards

    def marker_written(self, partition: TopicPartition, producer_id: int, *, raises_epoch: bool = False) -> None:
        """Breaks the guards of the producer in this partition. Their batches keep their place in the order.

        The guard of a partition that is added stays when the marker ``raises_epoch``. Its batch belongs to the epoch of
        one transaction: the marker that ends this transaction has a higher epoch, which fences the batch, and a marker
        of the same epoch ended the one before.
        """
        for guard in self._guards.get((partition, producer_id), ()):
            if not (guard.adds and raises_epoch):
                guard.break_open()
        if self._refused:
            for key in [key for key in self._refused if key[0] == partition and key[1].producer_id == producer_id]:
                del self._refused[key]

    # The order of retried batches.

    def check_order(self, partition: TopicPartition, producer: ProducerStamp, sequence: int) -> None:
        """Raises NOT_ENOUGH_REPLICAS for a batch that would overtake the retry of a refused one."""
        lowest = self._refused.get((partition, producer)) if self._refused else None
        if lowest is not None and sequence > lowest:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"producer {producer.producer_id} sends sequence {sequence} before the retry of {lowest}",
            )

    def refused(self, partition: TopicPartition, producer: ProducerStamp, sequence: int) -> None:
        """Remembers a batch that was refused for a transient reason: the producer will retry it."""
        if sequence == _NO_SEQUENCE:
            return
        key = (partition, producer)
        self._refused[key] = min(sequence, self._refused.get(key, sequence))
        self._refused.move_to_end(key)
        if len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)

    def accepted(self, partition: TopicPartition, producer: ProducerStamp) -> None:
        """Forgets the refused sequence number: the retry has arrived."""
        if self._refused:
            self._refused.pop((partition, producer), None)
