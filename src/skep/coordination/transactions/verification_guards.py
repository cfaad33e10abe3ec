"""What holds while the coordinator of a transaction, on another broker, is asked whether a partition is a part of it.

The answer takes a while, and the transaction may end meanwhile: its marker comes to the partition, and a batch that is
then appended on the strength of the answer would begin a transaction that nobody ends. So whoever asks has a guard,
which the marker breaks. It also stands for a place in the order: as long as a producer's batch waits for a partition,
those that come after it have to wait too, or their sequence would be out of order. (Kafka: VerificationGuard, KIP-890.)

A producer that the partition has never heard of may begin with any sequence. So what was refused for a passing reason
is remembered: the batches that were under way behind it must not overtake the one that is sent again.
"""

from collections import OrderedDict

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, TopicPartition
from skep.coordination.shard import ProducerStamp

MOST_REFUSED = 10_000
_NO_SEQUENCE = -1

_Key = tuple[TopicPartition, int]


class Guard:
    """One batch that waits for the coordinator's word. ``refusal`` is that word, None: it may be appended."""

    __slots__ = ("_is_broken", "leader_epoch", "partition", "producer", "refusal")

    def __init__(self, partition: TopicPartition, producer: ProducerStamp, leader_epoch: LeaderEpoch) -> None:
        self.partition = partition
        self.producer = producer
        self.leader_epoch = leader_epoch
        self.refusal: KafkaError | None = KafkaError(ErrorCode.not_enough_replicas, "the transaction was not verified")
        self._is_broken = False

    @property
    def key(self) -> _Key:
        return self.partition, self.producer.producer_id

    def break_open(self) -> None:
        self._is_broken = True

    def check(self, leader_epoch: LeaderEpoch) -> None:
        """Raises what the coordinator refused, or NOT_ENOUGH_REPLICAS when what it said may no longer be so.

        In another leader's epoch a marker may have come that was not seen here.
        """
        if self.refusal is not None:
            raise self.refusal
        if self._is_broken or leader_epoch != self.leader_epoch:
            raise KafkaError(
                ErrorCode.not_enough_replicas, f"a transaction ended in {self.partition} while this one was verified"
            )


class Guards:
    """The guards of this broker's partitions, and the lowest sequences that were refused.

    Between calls each guard that was begun and not released is here, unless a marker broke it.
    """

    def __init__(self) -> None:
        self._guards: dict[_Key, set[Guard]] = {}
        self._refused: OrderedDict[tuple[TopicPartition, ProducerStamp], int] = OrderedDict()

    def begin(self, partition: TopicPartition, producer: ProducerStamp, leader_epoch: LeaderEpoch) -> Guard:
        guard = Guard(partition, producer, leader_epoch)
        self._guards.setdefault(guard.key, set()).add(guard)
        return guard

    def release(self, guard: Guard) -> None:
        guards = self._guards.get(guard.key)
        if guards is not None:
            guards.discard(guard)
            if not guards:
                del self._guards[guard.key]

    def is_waiting(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether a batch of the producer waits for the partition."""
        return bool(self._guards) and (partition, producer_id) in self._guards

    def marker_written(self, partition: TopicPartition, producer_id: int) -> None:
        """Whoever waits is let go on, and finds its guard broken. It keeps its place in the order."""
        for guard in self._guards.get((partition, producer_id), ()):
            guard.break_open()
        if self._refused:
            for key in [key for key in self._refused if key[0] == partition and key[1].producer_id == producer_id]:
                del self._refused[key]

    # The order of what is sent again.

    def check_order(self, partition: TopicPartition, producer: ProducerStamp, sequence: int) -> None:
        """NOT_ENOUGH_REPLICAS for a batch that would overtake one that was refused before."""
        lowest = self._refused.get((partition, producer)) if self._refused else None
        if lowest is not None and sequence > lowest:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"producer {producer.producer_id} sends sequence {sequence} while {lowest} is still to come",
            )

    def refused(self, partition: TopicPartition, producer: ProducerStamp, sequence: int) -> None:
        """For a passing reason: the producer will send it again."""
        if sequence == _NO_SEQUENCE:
            return
        key = (partition, producer)
        self._refused[key] = min(sequence, self._refused.get(key, sequence))
        self._refused.move_to_end(key)
        if len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)

    def accepted(self, partition: TopicPartition, producer: ProducerStamp) -> None:
        """The batch that had to come first has come."""
        if self._refused:
            self._refused.pop((partition, producer), None)
