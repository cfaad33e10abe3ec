"""The driver's own transaction: it writes decisions, and rows that are written again.

Its transactional id is derived from the query's id. Initializing it fences any other driver of the query that still
runs, and aborts the transaction that one had open.
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
"""How long a driver that died during a decision blocks other queries with decisions in the same partition."""


class DriverTransaction:
    """Owns the producer's epoch and its next sequence in each partition. After ``commit`` no transaction is open.

    Any call raises KafkaError with PRODUCER_FENCED or INVALID_PRODUCER_EPOCH if another driver has taken over.
    """

    def __init__(self, access: PartitionAccess, transactional_id: str) -> None:
        self._access = access
        self._id = transactional_id
        self._identity = become_producer(access.cluster, transactional_id, TIMEOUT_MS)
        self._sequences: dict[tuple[str, int], int] = defaultdict(int)
        self._added: set[tuple[str, int]] = set()

    def take_longer(self, timeout_ms: int) -> None:
        """Sets the timeout of the transactions that follow. Raises, as any call, if another driver took over."""
        self._identity = become_producer(self._access.cluster, self._id, timeout_ms, current=self._identity)
        self._sequences.clear()

    def append_record(
        self, topic: str, partition: int, key: bytes, value: bytes | None, timestamp_ms: int
    ) -> int | None:
        """Writes one record. Returns its offset if the broker reports it."""
        batch = build_batch([NewRecord(key, value, timestamp_ms)], codec=Codec.LZ4, is_transactional=True)
        return self.append(topic, partition, batch)

    def append(self, topic: str, partition: int, batch: bytes) -> int | None:
        """Writes the records of a batch of any producer as our own. The first call begins the transaction.

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
        """Commits what is appended inside the block. Aborts it after an error, so that nobody waits for a timeout."""
        try:
            yield
            self.commit()
        except (CommitFailed, KafkaError, ClientError):
            # If the commit was decided and only its response was lost, the abort is refused.
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
    """Calls ``init_producer_id``, and halves the timeout as often as the broker refuses it as too long.

    The driver must be able to end its transactions whatever the broker's ``transaction.max.timeout.ms`` is; it may have
    been lowered since the query was started.
    """
    while True:
        try:
            return init_producer_id(cluster, transactional_id, timeout_ms, current=current)
        except KafkaError as error:
            if error.code is not ErrorCode.invalid_transaction_timeout or timeout_ms <= 1:
                raise
            timeout_ms //= 2
