"""Copies the dead records of one share partition to the dead-letter topic, each exactly once.

A request names ranges of offsets that the share partition has in state ARCHIVING. One request is one transaction::

    init_transactions      fences the copier of an earlier leader, and ends its open transaction
    read the last copy     what the last committed transaction has copied
    begin, the letters, the new last copy, commit

The last copy is an offset commit of the group ``skep.dlq.<group>`` for the source partition: its metadata names the
transaction (``serial``) and the ranges. It is in the same transaction as the letters, so both are there or neither.

The broker sends with each request the ``serial`` that it has archived all records of (``after``). If that is not the
last copy, the broker has died or did not get the response: nothing is written, and the response has the ranges of the
last copy. So a letter is never written twice, even if a process dies between the commit and the write of the share
state, or if two leaders send requests. The dead-letter topic, which other groups may use too, is not searched.

An offset can die again after it was reopened (redrive). Each reopening begins a new ``generation`` of the share state,
and a last copy of an earlier generation does not count. While the outcome of a copy is not known, the broker reopens
nothing.

Left out
    The last copy is lost when offsets expire (``offsets.retention.minutes``, seven days), or when the group
    ``skep.dlq.<group>`` is deleted. This matters only if the broker has died in between.
"""

import contextlib
import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from skep.base.dead_letters import (
    COPIED,
    DELETED,
    NOT_ASKED,
    NOTES_PREFIX,
    DeadLetter,
    Headers,
    short_name,
)
from skep.records.record import Record
from skep.worker.source_records import SourceRecords, Unreadable

REQUEST_TIMEOUT_S = 45.0
"""After that the request fails, and the broker sends it again."""
TRANSACTION_TIMEOUT_MS = 60_000
_BUFFERED_KB = 16_384
_ABORT_S = 5.0
_RECORD_OVERHEAD = 160
"""More than a batch with one record has beside keys, values and headers."""
_HEADER_OVERHEAD = 10

Range = tuple[int, int]


class CopyFailed(Exception):
    """Nothing is known to be copied. The same request may be sent again."""


class CopyRequest(NamedTuple):
    """One request of the broker. ``ranges`` are ascending and disjoint: first, last, delivery count, reason."""

    group: str
    topic: str
    topic_id: str
    partition: int
    generation: str
    """Of the share state; without blanks."""
    after: str | None
    dlq_topic: str
    dlq_partition: int
    max_message_bytes: int
    copy: bool
    compacted: bool
    ranges: Sequence[tuple[int, int, int, str]]


class LastCopy(NamedTuple):
    """What the last transaction of a share partition has copied."""

    serial: str
    topic_id: str
    generation: str
    ranges: Sequence[Range]

    def text(self) -> str:
        ranges = ",".join(f"{first}-{last}" for first, last in self.ranges)
        return f"{self.serial} {self.topic_id} {self.generation} {ranges}"

    @classmethod
    def parsed(cls, text: str) -> "LastCopy | None":
        """Returns None if the offset was committed by another client."""
        try:
            serial, topic_id, generation, ranges = text.split(" ")
            pairs = [one.split("-") for one in ranges.split(",")]
            return cls(serial, topic_id, generation, [(int(first), int(last)) for first, last in pairs])
        except ValueError:
            return None


class DeadLetterCopier:
    """Owns the producer, the consumer and the knowledge of the last copy, which is right as long as the producer is not
    fenced. ``copy`` is not called by two threads at a time. After a failure everything is opened anew."""

    def __init__(self, client: dict[str, Any], admin: AdminClient) -> None:
        self._client = client
        self._admin = admin
        self._producer: Producer | None = None
        self._source: SourceRecords | None = None
        self._last: LastCopy | None = None
        self._max_message_bytes = 0
        self._failures: list[Any] = []

    def copy(self, request: CopyRequest) -> LastCopy:
        """Returns what is copied: by this request, or if ``after`` is not the last copy, by an earlier one. Raises
        CopyFailed."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        try:
            if self._producer is None or self._max_message_bytes != request.max_message_bytes:
                self.close()
                self._open(request, deadline)
            last = self._last
            if last is not None and _concerns(last, request) and last.serial != request.after:
                return last
            return self._transact(request, deadline)
        except KafkaException as error:
            self._abandon()
            raise CopyFailed(_text(error)) from None
        except SystemError as error:
            # librdkafka raises a fatal error, for example when the producer is fenced, and still calls ``_delivered``.
            self._abandon()
            raise CopyFailed(_text(error.__cause__ or error)) from None
        except BaseException:
            self._abandon()
            raise

    def _open(self, request: CopyRequest, deadline: float) -> None:
        group = f"{NOTES_PREFIX}{short_name(request.group)}"
        self._max_message_bytes = request.max_message_bytes
        self._producer = Producer(
            {
                **self._client,
                "transactional.id": f"{group}.{request.topic_id}-{request.partition}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.max.bytes": min(max(1_000, request.max_message_bytes), 1_000_000_000),
                "queue.buffering.max.kbytes": max(_BUFFERED_KB, request.max_message_bytes // 512),
                "linger.ms": 5,
            }
        )
        self._source = SourceRecords(self._client, group)
        self._producer.init_transactions(_left(deadline))
        self._last = self._read_last(group, request, deadline)

    def _read_last(self, group: str, request: CopyRequest, deadline: float) -> LastCopy | None:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(request.topic, request.partition)])
        futures = self._admin.list_consumer_group_offsets([asked], require_stable=True, request_timeout=_left(deadline))
        (found,) = futures[group].result(_left(deadline)).topic_partitions
        if found.error is not None:
            raise KafkaException(found.error)
        return LastCopy.parsed(found.metadata or "") if found.offset >= 0 else None

    def _transact(self, request: CopyRequest, deadline: float) -> LastCopy:
        producer, source = self._producer, self._source
        assert producer is not None and source is not None
        ranges = [(first, last) for first, last, _, _ in request.ranges]
        copied = LastCopy(secrets.token_hex(8), request.topic_id, request.generation, ranges)
        self._failures.clear()
        producer.begin_transaction()
        for letter, record in _letters(source, request, deadline):
            self._write(producer, request, letter, record, deadline)
        source.forget()
        # Flushed before the offset is sent: after a refused record, sending the offset fails without the reason.
        left = producer.flush(_left(deadline))
        self._check_delivered(request.dlq_topic)
        if left:
            raise CopyFailed(f"{request.dlq_topic} did not acknowledge all dead letters in time")
        self._check_source(request, deadline)
        marked = TopicPartition(request.topic, request.partition, ranges[-1][1] + 1, copied.text())
        producer.send_offsets_to_transaction([marked], source.group_metadata, _left(deadline))
        producer.commit_transaction(_left(deadline))
        self._last = copied
        return copied

    def _write(
        self, producer: Producer, request: CopyRequest, letter: DeadLetter, record: Record | None, deadline: float
    ) -> None:
        key, value, headers = None, None, letter.headers()
        if record is not None and letter.has_copy:
            with_copy = [*record.headers, *headers]
            size = _size(record.key, record.value, with_copy)
            if size > request.max_message_bytes:
                note = (
                    f"{size} bytes are more than max.message.bytes={request.max_message_bytes} of {request.dlq_topic}"
                )
                headers = letter._replace(copy=note).headers()
            else:
                key, value, headers = record.key, record.value, with_copy
        while True:
            try:
                producer.produce(
                    request.dlq_topic,
                    value,
                    key,
                    request.dlq_partition,
                    on_delivery=self._delivered,
                    timestamp=time.time_ns() // 1_000_000,
                    headers=headers,  # type: ignore[arg-type]  # a list of a narrower type
                )
                break
            except BufferError:
                producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise CopyFailed(f"{request.dlq_topic} takes records too slowly") from None
        producer.poll(0)
        self._check_delivered(request.dlq_topic)

    def _delivered(self, error: Any, _message: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _check_delivered(self, topic: str) -> None:
        if self._failures:
            raise CopyFailed(f"{topic}: {self._failures[0].str()}")

    def _check_source(self, request: CopyRequest, deadline: float) -> None:
        """Raises CopyFailed if the topic was deleted and created again since the request."""
        described = self._admin.describe_topics(TopicCollection([request.topic]), request_timeout=_left(deadline))
        bits = described[request.topic].result(_left(deadline)).topic_id
        high, low = bits.get_most_significant_bits(), bits.get_least_significant_bits()
        found = uuid.UUID(int=((high & _MASK) << 64) | (low & _MASK))
        if str(found) != request.topic_id:
            raise CopyFailed(f"topic {request.topic} has been deleted and created again")

    def _abandon(self) -> None:
        if self._producer is not None:
            # If it cannot be aborted now, the next init_transactions does it.
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)
        self.close()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        if self._producer is not None:
            # A producer that is dropped with records in its queue would wait for them.
            self._producer.purge()
        self._producer = self._source = self._last = None


_MASK = (1 << 64) - 1


def _concerns(last: LastCopy, request: CopyRequest) -> bool:
    return last.topic_id == request.topic_id and last.generation == request.generation


def _letters(
    source: SourceRecords, request: CopyRequest, deadline: float
) -> Iterator[tuple[DeadLetter, Record | None]]:
    """Yields a letter for each record, with the record if it can be read.

    A record is read even if no copy is asked for: offsets of transaction markers are part of the ranges, and are no
    records. In a compacted topic such an offset may have been a record, and gets a letter.
    """
    start = source.start_offset(request.topic, request.partition, _left(deadline))
    for first, last, delivery_count, reason in request.ranges:
        letter = DeadLetter(
            request.group, request.topic, request.partition, 0, delivery_count, reason, request.topic_id
        )
        gone = letter._replace(copy=DELETED)
        for offset in range(first, min(last + 1, start)):
            yield gone._replace(offset=offset), None
        position, topic_id = max(first, start), uuid.UUID(request.topic_id)
        while position <= last:
            missing, end = gone if request.compacted else None, last
            try:
                for record in source.read(request.topic, topic_id, request.partition, position, last, deadline):
                    found = record.offset
                    if request.compacted:
                        for offset in range(position, found):
                            yield gone._replace(offset=offset), None
                    position = found + 1
                    copy = COPIED if request.copy else NOT_ASKED
                    yield letter._replace(offset=found, timestamp=record.timestamp, copy=copy), record
            except Unreadable as error:
                missing, end = letter._replace(copy=f"the record cannot be read: {error}"), min(error.last, last)
            if missing is not None:
                for offset in range(position, end + 1):
                    yield missing._replace(offset=offset), None
            position = end + 1


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Returns at least the size of a batch with this record."""
    of_headers = sum(len(name.encode()) + len(content or b"") + _HEADER_OVERHEAD for name, content in headers)
    return _RECORD_OVERHEAD + len(key or b"") + len(value or b"") + of_headers


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _text(error: BaseException) -> str:
    inner = error.args[0]
    return str(inner.str() if hasattr(inner, "str") else inner)
