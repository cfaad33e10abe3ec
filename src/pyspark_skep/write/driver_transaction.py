"""The driver's own transaction: decisions, and rows that are written again.

Its transactional id is the query's. Whoever initializes it is the driver from then on: one that still runs somewhere
can commit nothing more, and what it had under way is aborted before we go on.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_skep.write.partition_access import PartitionAccess
from pyspark_skep.write.raw_batches import under_producer
from pyspark_skep.write.write_errors import CommitFailed
from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError
from skep.client.produce.transactions import add_partitions, end_transaction, init_producer_id
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.records.producer_identity import ProducerIdentity

TIMEOUT_MS = 60_000
"""How long a driver that died in the middle of a decision holds up other queries whose decisions are in the same
partition."""


class DriverTransaction:
    """Owns the producer's epoch and its next sequence in each partition. After ``commit`` none is open.

    KafkaError with PRODUCER_FENCED or INVALID_PRODUCER_EPOCH from any call: there is another driver.
    """

    def __init__(self, access: PartitionAccess, transactional_id: str) -> None:
        self._access = access
        self._id = transactional_id
        self._identity = become_producer(access.cluster, transactional_id, TIMEOUT_MS)
        self._sequences: dict[tuple[str, int], int] = defaultdict(int)
        self._added: set[tuple[str, int]] = set()

    def take_longer(self, timeout_ms: int) -> None:
        """For transactions that may be open for so long. Refused, as anything else, when there is another driver."""
        self._identity = become_producer(self._access.cluster, self._id, timeout_ms, current=self._identity)
        self._sequences.clear()

    def append_record(
        self, topic: str, partition: int, key: bytes, value: bytes | None, timestamp_ms: int
    ) -> int | None:
        """Returns its offset, if that is known."""
        batch = build_batch([NewRecord(key, value, timestamp_ms)], codec=Codec.LZ4, is_transactional=True)
        return self.append(topic, partition, memoryview(batch))

    def append(self, topic: str, partition: int, batch: memoryview) -> int | None:
        """Writes the records of a batch, whoever's they were. The first one begins the transaction.

        Returns the offset of the first record when all in-sync replicas have them; see ``PartitionAccess.produce``.
        """
        place = (topic, partition)
        if place not in self._added:
            add_partitions(self._access.cluster, self._id, self._identity, [place])
            self._added.add(place)
        producer_id, producer_epoch, _ = self._identity
        sequence = self._sequences[place]
        ours = under_producer(batch, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)
        offset = self._access.produce(topic, partition, ours, self._id)
        self._sequences[place] = (sequence + read_header(batch).records_count) & 0x7FFF_FFFF
        return offset

    @contextmanager
    def committed(self) -> Iterator[None]:
        """What is appended inside counts at its end, or after an error not at all: nobody has to wait for a timeout."""
        try:
            yield
            self.commit()
        except (CommitFailed, KafkaError, ClientError):
            # Should the commit have been decided, and only its answer be lost, then this is refused.
            with suppress(KafkaError, ClientError):
                self.abort()
            raise

    def commit(self) -> None:
        self._end(commit=True)

    def abort(self) -> None:
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        if self._added:
            end_transaction(self._access.cluster, self._id, self._identity, commit=commit)
            self._added.clear()


def become_producer(
    cluster: ClusterClient, transactional_id: str, timeout_ms: int, *, current: ProducerIdentity | None = None
) -> ProducerIdentity:
    """``init_producer_id`` with the timeout, or the half of it, and so on, if the broker allows no longer one.

    What the driver has to end must not depend on the broker's ``transaction.max.timeout.ms``, which may have become
    smaller since the query was started.
    """
    while True:
        try:
            return init_producer_id(cluster, transactional_id, timeout_ms, current=current)
        except KafkaError as error:
            if error.code is not ErrorCode.invalid_transaction_timeout or timeout_ms <= 1:
                raise
            timeout_ms //= 2
