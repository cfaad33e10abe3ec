"""The batches of idempotent producers that a connection was refused and that the producer sends again.

A producer that a partition does not know may begin with any sequence number, because its records may all have been
deleted (KIP-360). So when the first batch of a producer is refused for a transient reason (a broker that is elected
responds NOT_LEADER_OR_FOLLOWER until it knows of the election) and the reason is gone before the next batch arrives,
which was in flight behind it, the partition would take that one. librdkafka then reports the first batch as delivered,
because a broker can take no batch after a gap. The records of the first batch would be acknowledged and lost.

Clients drain their requests before they send to another leader or on another connection. So a connection needs to
remember its own batches only, and the memory ends with it.
"""

from collections import OrderedDict

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import HEADER_SIZE, MAGIC_POSITION, BatchHeader, Buffer, read_header
from skep.storage.producers.producers import Producers

MOST_REFUSED = 1000
"""Partitions and producers of one connection; the oldest is forgotten."""
RETRIED = frozenset(
    (
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
    )
)
"""The errors after which a producer sends the same batch again."""

_Key = tuple[str, int, int, int]


class RefusedBatches:
    """The lowest refused sequence number per partition and producer, with the producer's epoch."""

    def __init__(self) -> None:
        self._lowest: OrderedDict[_Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lowest)

    def refused(self, topic: str, index: int, records: Buffer | None) -> None:
        """Remembers the batch if it is one of an idempotent producer."""
        if records is None or len(records) < HEADER_SIZE or records[MAGIC_POSITION] != 2:
            return
        header = read_header(records)
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        key = (topic, index, header.producer_id, header.producer_epoch)
        self._lowest[key] = min(header.base_sequence, self._lowest.get(key, header.base_sequence))
        if len(self._lowest) > MOST_REFUSED:
            self._lowest.popitem(last=False)

    def check(self, topic: str, index: int, header: BatchHeader, producers: Producers) -> None:
        """Raises NOT_ENOUGH_REPLICAS for a batch that would overtake the retry of a refused one.

        ``producers`` are those of the partition. If it knows the producer, it checks the sequence numbers itself.
        All clients retry after this code, with the same sequence numbers.
        """
        key = (topic, index, header.producer_id, header.producer_epoch)
        if (lowest := self._lowest.get(key)) is None:
            return
        if header.base_sequence > lowest and not producers.knows(header.producer_id):
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"producer {header.producer_id} sends sequence {header.base_sequence} before the retry of {lowest}",
            )
        del self._lowest[key]
