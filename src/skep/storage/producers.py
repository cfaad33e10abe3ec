"""What a log knows of idempotent producers: the sequence numbers of their last batches.

A producer numbers its records per partition, 0, 1, 2 ... 2**31-1, 0 ... A batch is

- new when it begins where the last one ended,
- a duplicate when it is one of the last five (a client has five requests under way at the most): it is answered as the
  first time and not written again,
- out of order otherwise.

A producer that is not known, or no longer, may begin at any number: its records may all have been deleted, and to
refuse it would stop it for ever (Kafka has done so since 2.4, KIP-360). A higher epoch begins at 0 again; a lower one
is a producer that has been replaced.

Left out: transactions; the fields that snapshots have for them are written empty.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import Offset
from skep.records.batch import BatchHeader

BATCHES_KEPT = 5
MAX_PRODUCERS = 10_000
"""Of one partition. Past that the one that was silent for the longest time is forgotten, as if it had expired."""

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_NO_COORDINATOR_EPOCH = -1
_NO_TRANSACTION = -1


class ProducedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: int
    """When it was appended; what the answer to a duplicate carries under LogAppendTime."""


class _Producer:
    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[ProducedBatch] = []


class Producers:
    """The producers of one log, the one that wrote last at the end of ``_producers``."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """None: the batch is new. Otherwise the batch it repeats. KafkaError refuses it. Changes nothing."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        sequence = header.base_sequence
        if header.producer_epoch != producer.epoch:
            if header.producer_epoch < producer.epoch:
                raise KafkaError(
                    ErrorCode.invalid_producer_epoch,
                    f"producer {header.producer_id} has epoch {producer.epoch}, the batch {header.producer_epoch}",
                )
            if sequence != 0:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {sequence}",
                )
            return None
        last_sequence = producer.batches[-1].last_sequence
        if sequence == (last_sequence + 1) & 0x7FFF_FFFF:
            return None
        for batch in producer.batches:
            if batch.base_sequence == sequence and batch.last_sequence == header.last_sequence:
                return batch
        raise KafkaError(
            ErrorCode.out_of_order_sequence_number,
            f"producer {header.producer_id} sends sequence {sequence} after {last_sequence}",
        )

    def record(self, header: BatchHeader, base_offset: Offset, now_ms: int) -> None:
        """The batch, checked or found in the log, is at ``base_offset``."""
        producer = self._producers.pop(header.producer_id, None)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = _Producer(header.producer_epoch)
        last_offset = Offset(base_offset + header.last_offset_delta)
        self._put(
            header.producer_id,
            producer,
            ProducedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset, now_ms),
        )

    def _put(self, producer_id: int, producer: _Producer, batch: ProducedBatch) -> None:
        producer.batches.append(batch)
        if len(producer.batches) > BATCHES_KEPT:
            del producer.batches[0]
        self._producers[producer_id] = producer
        if len(self._producers) > MAX_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def expire(self, before_ms: int) -> None:
        """Forgets the producers whose last batch is older."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.batches[-1].timestamp < before_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]

    def encode(self) -> bytes:
        """A ``.snapshot`` as Kafka writes it, except that a producer has a row for each of its batches.

        Kafka keeps the last batch only, so a producer that repeats several after a restart is told that they are out
        of order. A reader that takes the last row of a producer, as Kafka does, still gets what it expects.
        """
        rows = [
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.base_offset,
                batch.timestamp,
                _NO_COORDINATOR_EPOCH,
                _NO_TRANSACTION,
            )
            for producer_id, producer in self._producers.items()
            for batch in producer.batches
        ]
        body = _COUNT.pack(len(rows)) + b"".join(rows)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> "Producers":
        """ValueError when the snapshot is damaged."""
        if len(data) < _SNAPSHOT_HEAD.size + _COUNT.size:
            raise ValueError("the snapshot is cut off")
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        body = memoryview(data)[_SNAPSHOT_HEAD.size :]
        if version != _SNAPSHOT_VERSION or crc32c(body) != crc:
            raise ValueError("the snapshot's version or CRC is wrong")
        rows = body[_COUNT.size :]
        if len(rows) != _COUNT.unpack_from(body)[0] * _SNAPSHOT_ENTRY.size:
            raise ValueError("the snapshot's count is wrong")
        producers = cls()
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ in _SNAPSHOT_ENTRY.iter_unpack(rows):
            producer = producers._producers.pop(producer_id, None)
            if producer is None or producer.epoch != epoch:
                producer = _Producer(epoch)
            base_sequence = (last_sequence - delta) & 0x7FFF_FFFF
            base_offset = Offset(last_offset - delta)
            batch = ProducedBatch(base_sequence, last_sequence, base_offset, Offset(last_offset), timestamp)
            producers._put(producer_id, producer, batch)
        return producers
