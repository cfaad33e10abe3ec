"""A producer for columns: encodes Arrow arrays into record batches and sends these to the leaders of their partitions.

Between two batches ``Delivery`` sends and receives on the caller's thread, so brokers handle the batches before while
rows are encoded. ``send`` waits when more than ``buffer_bytes`` are unacknowledged.

A batch is sent again until it is acknowledged or refused, with the same sequence number, by which the brokers recognize
what they already have. So within the life of a producer each row is written once, and in order in its partition.

Left out: a background thread. Rows may stay unsent until ``flush``.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError
from skep.client.produce.batch_cutter import Rows, batches_of
from skep.client.produce.delivery import DELIVERY_TIMEOUT_S, REQUEST_BYTES, REQUEST_TIMEOUT_S, Delivery
from skep.client.produce.produce_pipe import ProduceOptions
from skep.client.produce.produce_queue import Partition, Written
from skep.client.produce.transactions import (
    DEFAULT_TIMEOUT_MS,
    FENCED,
    add_partitions,
    end_transaction,
    init_producer_id,
    wait_until_visible,
)
from skep.records.columnar import RecordColumns, RecordTooLarge
from skep.records.compression import Codec
from skep.records.producer_identity import NO_PRODUCER, ProducerIdentity

BATCH_BYTES = 1_000_000
"""The size up to which a batch is filled, before compression; a little below the default of ``max.message.bytes``."""
BUFFER_BYTES = 32 << 20


class Producer:
    """Writes rows to partitions; with a transactional id, in transactions.

    Until ``close`` it owns a connection to each broker that it writes to. The ``cluster`` is the caller's, who may use
    it meanwhile on the same thread. After an error every later call raises it again, except ``abort`` and ``close``.
    Not for several threads.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        codec: Codec = Codec.NONE,
        acks: int = -1,
        batch_bytes: int = BATCH_BYTES,
        max_batch_bytes: int = BATCH_BYTES,
        max_request_bytes: int = REQUEST_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        client_id: str = "skep",
    ) -> None:
        """``batch_bytes`` is the size up to which a batch is filled, ``max_batch_bytes`` the limit of a single row.

        With ``acks=1`` brokers do not wait for replicas; such batches carry no sequence numbers, and a lost connection
        may duplicate them.
        """
        if acks not in (-1, 1):
            raise ValueError(f"acks must be -1 or 1, not {acks}")
        if acks == 1 and transactional_id is not None:
            raise ValueError("a transaction needs acks=-1")
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._codec = codec
        self._is_idempotent = acks == -1
        self._max_batch_bytes = max_batch_bytes
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._identity: ProducerIdentity | None = None
        self._added: set[tuple[str, int]] = set()
        self._limits: dict[str, int] = {}
        self._began_at: float | None = None
        self._is_commit_asked = False
        self._failure: Exception | None = None
        self._delivery = Delivery(
            cluster,
            ProduceOptions(client_id, transactional_id, acks, round(request_timeout_s * 1000)),
            max_request_bytes=max_request_bytes,
            request_timeout_s=request_timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            before_sending=self._add_to_transaction,
        )

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch in the batches, after ``begin`` or the first ``send``."""
        return NO_PRODUCER if self._identity is None else self._identity

    @property
    def written(self) -> dict[tuple[str, int], Written]:
        """What was acknowledged since ``begin``, by topic and partition."""
        return self._delivery.queue.written

    def set_limit(self, topic: str, max_batch_bytes: int) -> None:
        """Sets the limit of a batch for this topic (``max.message.bytes``), in place of ``max_batch_bytes``."""
        self._limits[topic] = max_batch_bytes

    def begin(self) -> None:
        """Gets the producer id if there is none yet, and resets ``written``.

        With a transactional id the first call fences the producer before and aborts its open transaction. A transaction
        itself begins at the coordinator with its first partition: one without rows leaves no trace.
        """
        self._check_failure()
        if self._delivery.queue.unacknowledged_bytes or self._added:
            raise ValueError("the last transaction has not been ended")
        self._ensure_identity()
        self._delivery.queue.written = {}

    def send(self, topic: str, partition: int, columns: RecordColumns, rows: Rows | None = None) -> None:
        """Queues these rows of the columns, or all, for a partition. Waits when the buffer is full.

        Raises RecordTooLarge with the row's place in the columns; rows before it may have been sent.
        """
        self._check_failure()
        self._ensure_identity()
        target = self._delivery.queue.partition(topic, partition)
        batches = batches_of(
            columns,
            rows,
            codec=self._codec,
            usual_bytes=self._batch_bytes,
            largest_bytes=self._limits.get(topic, self._max_batch_bytes),
            producer=self.identity,
            next_sequence=lambda: target.next_sequence,
        )
        try:
            with self._keeping_failure():
                for batch in batches:
                    self._delivery.queue.add(target, batch.data, batch.count)
                    if self._delivery.queue.waiting_bytes >= self._batch_bytes:
                        self._delivery.turn(wait=False)
                    while self._delivery.queue.unacknowledged_bytes > self._buffer_bytes:
                        self._delivery.turn(wait=True)
        except RecordTooLarge as error:
            raise RecordTooLarge(error.row, error.size, error.limit, topic) from None

    def flush(self) -> None:
        """Returns when every row is acknowledged."""
        self._check_failure()
        with self._keeping_failure():
            while self._delivery.queue.unacknowledged_bytes:
                self._delivery.turn(wait=True)

    def commit(self, *, until_visible: bool = False) -> None:
        """Flushes and commits the transaction, if anything was written in it.

        With ``until_visible`` this returns when readers see it. NotVisibleYet is no failure: the transaction is
        committed, and ``begin`` may follow.
        """
        assert self._transactional_id is not None
        self.flush()
        if not self._added:
            return
        with self._keeping_failure():
            self._is_commit_asked = True
            end_transaction(self._cluster, self._transactional_id, self.identity, commit=True)
        # The decision is final: there is nothing left to abort.
        self._forget_transaction()
        if until_visible:
            wait_until_visible(self._cluster, self._transactional_id, self.identity)

    def abort(self) -> None:
        """Drops unwritten rows and aborts the transaction. ``begin`` may follow, also after an error.

        Raises the error when the id has a newer producer: the transaction is aborted already, and this producer cannot
        be used any more. Raises INVALID_TXN_STATE when a ``commit`` that failed was carried out after all.
        """
        assert self._transactional_id is not None
        if isinstance(self._failure, KafkaError) and self._failure.code in FENCED:
            raise self._failure
        is_clean = self._failure is None and not self._delivery.queue.unacknowledged_bytes
        # In force until all of this is done: nobody must wait for what is dropped below.
        self._failure = self._failure or ClientError("the abort of the transaction was not completed")
        # A broker that does not verify the transaction with the coordinator would append requests in flight after its
        # end, and those would hold back readers for ever.
        self._delivery.settle()
        self._delivery.close()
        with self._keeping_failure():
            if self._added:
                self._end_aborting(may_be_missing=not is_clean and not self._is_commit_asked)
            if self._identity is not None and not is_clean:
                # The dropped batches leave a gap in the sequence numbers, and a request of ours may still be in flight.
                # The next epoch counts from 0 and fences it.
                self._identity = init_producer_id(
                    self._cluster, self._transactional_id, self._transaction_timeout_ms, current=self._identity
                )
                self._delivery.reset()
        self._forget_transaction()
        self._failure = None

    def close(self) -> None:
        """Closes the connections. Rows that are not flushed may be written or not; a transaction stays open."""
        self._delivery.close()
        if self._failure is None:
            self._failure = ClientError("the producer is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Flushes first if there was no error."""
        try:
            if kind is None and self._failure is None:
                self.flush()
        finally:
            self.close()

    def _end_aborting(self, *, may_be_missing: bool) -> None:
        assert self._transactional_id is not None
        try:
            end_transaction(self._cluster, self._transactional_id, self.identity, commit=False)
        except KafkaError as error:
            # The request that would have begun it may not have arrived.
            if may_be_missing and error.code is ErrorCode.invalid_txn_state:
                return
            if self._is_commit_asked and error.code is ErrorCode.invalid_txn_state:
                raise KafkaError(
                    error.code,
                    f"transactional id '{self._transactional_id}': the commit has succeeded; there is nothing to abort",
                ) from None
            raise

    def _forget_transaction(self) -> None:
        self._added, self._is_commit_asked, self._began_at = set(), False, None

    def _ensure_identity(self) -> None:
        if self._identity is None:
            with self._keeping_failure():
                self._identity = (
                    init_producer_id(self._cluster, self._transactional_id, self._transaction_timeout_ms)
                    if self._is_idempotent
                    else NO_PRODUCER
                )

    def _add_to_transaction(self, partitions: list[Partition]) -> None:
        if self._transactional_id is None:
            return
        new = {(partition.topic, partition.index) for partition in partitions} - self._added
        if new:
            # Noted before the request: when its response is lost, there may be a transaction that must be ended.
            self._added |= new
            if self._began_at is None:
                self._began_at = time.monotonic()
            add_partitions(self._cluster, self._transactional_id, self.identity, sorted(new))

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            self._failure = self._explained(error)
            raise self._failure from None
        except ClientError as error:
            self._failure = error
            raise

    def _explained(self, error: KafkaError) -> KafkaError:
        """Returns an error that names the timeout, if that was exceeded.

        A coordinator that aborts a transaction by its timeout fences the producer, as a newer producer would.
        """
        if error.code not in FENCED or self._began_at is None:
            return error
        open_s = time.monotonic() - self._began_at
        if open_s * 1000 < self._transaction_timeout_ms:
            return error
        return KafkaError(
            error.code,
            f"{error.detail}: the transaction was open for {open_s:.1f} s and its timeout is "
            f"{self._transaction_timeout_ms} ms (transaction_timeout_ms), so the broker has aborted it",
        )

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
