"""The idempotent and transactional producers of a log: the sequence numbers of their last batches, their epochs, and
which of them are in a transaction.

A producer numbers its records per partition, 0, 1, 2 ... 2**31-1, 0 ... A batch is

- new when it begins where the last one ended,
- a duplicate when it is one of the last five (a client has at most five requests in flight): it gets the same response
  as the first copy and is not written again,
- out of order otherwise.

A producer that is unknown, or forgotten, may begin at any number: its records may all have been deleted, and refusing
it would stop it for ever (as in Kafka since 2.4, KIP-360). A higher epoch begins at 0 again; a lower one is fenced.
Batches without a sequence are a coordinator's own (offsets that a transaction commits): only their epoch is checked.

A transaction's marker comes from a coordinator, with the coordinator's epoch. It may raise the producer's epoch: that
is how a coordinator fences a producer that still writes to an aborted transaction.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import Offset
from skep.records.batch import TRANSACTIONAL_FLAG, BatchHeader
from skep.records.end_txn_marker import EndTxnMarker
from skep.storage.producers.open_transactions import Transactions
from skep.storage.producers.snapshot_format import (
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    encode_snapshot,
    last_row,
    pack_row,
    rows_by_producer,
    unpack_rows,
)
from skep.storage.segment.transaction_index import AbortedTransaction

BATCHES_KEPT = 5
MAX_PRODUCERS = 10_000
RECENT_PRODUCERS = 1000
"""The number of producers of which a snapshot has all batches; of the others it has the last one."""
NO_EPOCH = -1
_HIGHEST_SEQUENCE = 0x7FFF_FFFF


class ProducedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: int
    """When it was appended; the response to a duplicate carries it under LogAppendTime."""


class ProducerState(NamedTuple):
    """A producer as DescribeProducers shows it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp = -1
        self.batches: list[ProducedBatch] = []

    def enter_epoch(self, epoch: int) -> None:
        """Resets the sequences; the coordinator epoch stays."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class Producers:
    """The producers of one log. ``_idle`` are those in no transaction; the one that wrote last is at the end.

    ``_packed`` has the rows of producers from a snapshot that were not used yet, and ``_producers`` has the others. A
    log with ten thousand producers is opened on the event loop, and few of them write again.

    There are at most ``max_producers`` idle ones: past that the one that has not written for the longest time is
    forgotten, as if it had expired. A producer in a transaction is never forgotten, because readers wait for its end.
    """

    __slots__ = ("_idle", "_max_producers", "_packed", "_producers", "transactions")

    def __init__(self, max_producers: int = MAX_PRODUCERS) -> None:
        self.transactions = Transactions()
        self._producers: dict[int, _Producer] = {}
        self._packed: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._max_producers = max_producers

    def __len__(self) -> int:
        return len(self._producers) + len(self._packed)

    @property
    def max_producers(self) -> int:
        return self._max_producers

    @property
    def latest_timestamp(self) -> int:
        """The time of the latest write of any producer; -1 when there is none."""
        unpacked = max((producer.last_timestamp for producer in self._producers.values()), default=-1)
        packed = max((last_row(rows)[2] for rows in self._packed.values()), default=-1)
        return max(unpacked, packed)

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._producers or producer_id in self._packed

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """Returns None for a new batch, and the first copy for a duplicate. Raises KafkaError to refuse the batch.

        Changes nothing.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None and (producer := self._unpacked(header.producer_id)) is None:
            return None
        sequence, batches = header.base_sequence, producer.batches
        last_sequence = batches[-1].last_sequence if batches else NO_SEQUENCE
        if header.producer_epoch != producer.epoch:
            if header.producer_epoch < producer.epoch:
                raise _old_epoch(header.producer_id, producer.epoch, header.producer_epoch)
            if sequence > 0:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {sequence}",
                )
        elif sequence != (last_sequence + 1) & _HIGHEST_SEQUENCE and sequence != NO_SEQUENCE:
            for batch in batches:
                if batch.base_sequence == sequence and batch.last_sequence == header.last_sequence:
                    return batch
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sends sequence {sequence} after {last_sequence}",
            )
        if header.producer_id in self.transactions.ongoing and not header.attributes & TRANSACTIONAL_FLAG:
            detail = f"producer {header.producer_id} is in a transaction, the batch is not"
            raise KafkaError(ErrorCode.invalid_txn_state, detail)
        return None

    def record(self, header: BatchHeader, base_offset: Offset, now_ms: int) -> None:
        """Notes a batch at ``base_offset``, which ``check`` has passed or recovery has found."""
        producer_id = header.producer_id
        # As ``_known`` and ``_wrote_outside``, without the calls: every Produce request takes this path.
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._known(producer_id, header.producer_epoch)
        last_offset = Offset(base_offset + header.last_offset_delta)
        batches = producer.batches
        batches.append(ProducedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset, now_ms))
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        producer.last_timestamp = now_ms
        if header.attributes & TRANSACTIONAL_FLAG:
            self.transactions.begin(producer_id, base_offset)
            self._idle.pop(producer_id, None)
        elif producer_id in self._idle:
            self._idle.move_to_end(producer_id)
        else:
            self._wrote_outside(producer_id)

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, raises_epoch: bool = False
    ) -> None:
        """Raises KafkaError when the epoch of the producer or of the coordinator was replaced by a higher one.

        A marker that ``raises_epoch`` does not end a transaction of its own epoch: that is the next one, and the marker
        is a copy that was delayed on its way (KIP-1228). The highest epoch is never that of a transaction of v2.
        """
        producer = self._producers.get(producer_id) or self._unpacked(producer_id)
        if producer is None:
            return
        if producer_epoch < producer.epoch:
            raise _old_epoch(producer_id, producer.epoch, producer_epoch)
        if raises_epoch and producer_epoch == producer.epoch and producer_id in self.transactions.ongoing:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id} has begun its next transaction with epoch {producer_epoch}",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"the marker's coordinator has epoch {coordinator_epoch}, the last had {producer.coordinator_epoch}",
            )

    def record_marker(
        self, header: BatchHeader, marker: EndTxnMarker, offset: Offset, now_ms: int
    ) -> AbortedTransaction | None:
        """Notes a marker at ``offset``; returns the transaction if it was aborted, for the transaction index."""
        producer = self._known(header.producer_id, header.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = now_ms
        ended = self.transactions.end(header.producer_id, offset)
        self._wrote_outside(header.producer_id)
        return None if marker.committed else ended

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Returns whether the producer has an open transaction in this epoch."""
        if producer_id not in self.transactions.ongoing:
            return False
        producer = self._producers.get(producer_id) or self._unpacked(producer_id)
        return producer is not None and producer.epoch == producer_epoch

    def _unpacked(self, producer_id: int) -> _Producer | None:
        """Unpacks a producer from a snapshot when it is used first."""
        rows = self._packed.pop(producer_id, None)
        if rows is None:
            return None
        producer = self._producers[producer_id] = _unpack(rows)
        return producer

    def _known(self, producer_id: int, epoch: int) -> _Producer:
        producer = self._producers.get(producer_id) or self._unpacked(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(epoch)
        elif producer.epoch != epoch:
            producer.enter_epoch(epoch)
        return producer

    def _wrote_outside(self, producer_id: int) -> None:
        """Makes the producer the last idle one, unless it is in a transaction; may forget the first idle one.

        Never this one: it may be about to repeat what it wrote.
        """
        if producer_id in self.transactions.ongoing:
            return
        idle = self._idle
        idle[producer_id] = None
        idle.move_to_end(producer_id)
        if len(idle) > self._max_producers:
            self._forget(idle.popitem(last=False)[0])

    def _forget(self, producer_id: int) -> None:
        self._producers.pop(producer_id, None)
        self._packed.pop(producer_id, None)

    def expire(self, before_ms: int) -> None:
        """Forgets the producers that have not written since ``before_ms``."""
        for producer_id in [one for one in self._idle if self._last_timestamp(one) < before_ms]:
            del self._idle[producer_id]
            self._forget(producer_id)

    def _last_timestamp(self, producer_id: int) -> int:
        rows = self._packed.get(producer_id)
        return self._producers[producer_id].last_timestamp if rows is None else last_row(rows)[2]

    def states(self) -> Iterator[ProducerState]:
        """Yields the producers that are known now, each as it is when it is yielded; others may change meanwhile."""
        ongoing = self.transactions.ongoing
        for producer_id in [*ongoing, *self._idle]:
            producer = self._producers.get(producer_id) or self._unpacked(producer_id)
            if producer is None:
                continue
            yield ProducerState(
                producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE,
                producer.last_timestamp,
                producer.coordinator_epoch,
                ongoing.get(producer_id, NO_OFFSET),
            )

    def last_records(self) -> list[tuple[int, int, int]]:
        """Returns (producer id, offset of its last record or -1, epoch) of each: what compaction must keep."""
        asked_for = [
            (producer_id, producer.batches[-1].last_offset if producer.batches else NO_OFFSET, producer.epoch)
            for producer_id, producer in self._producers.items()
        ]
        packed = ((producer_id, last_row(rows)) for producer_id, rows in self._packed.items())
        return asked_for + [(producer_id, last_offset, epoch) for producer_id, (epoch, last_offset, _) in packed]

    def encode(self) -> bytes:
        """Returns a ``.snapshot`` as Kafka writes it, except that a recent producer has a row for each of its batches.

        Kafka keeps only the last batch, so a producer that repeats several after a restart gets
        OUT_OF_ORDER_SEQUENCE_NUMBER. A reader that takes the last row of a producer, as Kafka does, still gets what it
        expects. Here that happens to a producer after which RECENT_PRODUCERS others have written: fifty thousand rows
        of ten thousand producers took 30 ms on the event loop.
        """
        # Producers in a transaction, then the idle ones in their order, which a snapshot preserves.
        rows: list[bytes] = []
        for producer_ids in (self.transactions.ongoing, self._idle):
            first_recent = len(producer_ids) - RECENT_PRODUCERS
            for number, producer_id in enumerate(producer_ids):
                packed = self._packed.get(producer_id)
                rows.append(packed or self._pack(producer_id, BATCHES_KEPT if number >= first_recent else 1))
        return encode_snapshot(rows)

    def _pack(self, producer_id: int, count: int) -> bytes:
        """Returns the rows of the producer's last ``count`` batches."""
        # No temporary objects: this is called for ten thousand producers in a row.
        producer = self._producers[producer_id]
        epoch, coordinator_epoch = producer.epoch, producer.coordinator_epoch
        first = self.transactions.ongoing.get(producer_id, NO_OFFSET)
        if not producer.batches:
            only = (NO_SEQUENCE, NO_OFFSET, 0, producer.last_timestamp)
            return pack_row(producer_id, epoch, *only, coordinator_epoch, first)
        rows = [
            pack_row(producer_id, epoch, sequence, last, last - base, timestamp, coordinator_epoch, first)
            for _, sequence, base, last, timestamp in producer.batches[-count:]
        ]
        return rows[0] if len(rows) == 1 else b"".join(rows)

    @classmethod
    def decode(cls, data: bytes, max_producers: int = MAX_PRODUCERS) -> "Producers":
        """Raises ValueError when the snapshot is damaged."""
        producers = cls(max_producers)
        ongoing: dict[int, Offset] = {}
        packed, idle = producers._packed, producers._idle
        for producer_id, first, rows in rows_by_producer(data):
            packed[producer_id] = packed[producer_id] + rows if producer_id in packed else rows
            if first >= 0:
                ongoing[producer_id] = Offset(first)
        producers.transactions = Transactions(ongoing.items())
        for producer_id in packed:
            if producer_id not in ongoing:
                idle[producer_id] = None
        while len(idle) > max_producers:
            producers._forget(idle.popitem(last=False)[0])
        return producers


def _unpack(rows: bytes) -> _Producer:
    producer = _Producer(NO_EPOCH)
    for _, epoch, sequence, last, delta, timestamp, coordinator_epoch, _ in unpack_rows(rows):
        producer.enter_epoch(epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = timestamp
        if last >= 0:
            base_sequence = NO_SEQUENCE if sequence == NO_SEQUENCE else (sequence - delta) & _HIGHEST_SEQUENCE
            producer.batches.append(
                ProducedBatch(base_sequence, sequence, Offset(last - delta), Offset(last), timestamp)
            )
    del producer.batches[:-BATCHES_KEPT]
    return producer


def _old_epoch(producer_id: int, current: int, given: int) -> KafkaError:
    return KafkaError(ErrorCode.invalid_producer_epoch, f"producer {producer_id} has epoch {current}, not {given}")
