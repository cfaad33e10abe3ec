"""Reads single records of a topic again, by their offsets, for the copies in dead letters.

Memory: one response of a broker, of about ``_FETCH_BYTES`` or with one larger batch, and one batch that is taken apart.
A batch decompresses to ``largest_unpacked`` bytes at the most; one that would be larger counts as unreadable. The
consumer of librdkafka has no such bound for gzip and lz4: a batch of 400 KB takes 400 MB (KAFKA-20723). So the records
are read by Skep's own client, which has one for every codec.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as ClientKafkaError

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import ClientError
from skep.client.fetch.partition_fetch import fetch_partition
from skep.client.list_offsets import EARLIEST, list_offsets
from skep.client.security.client_security import ClientSecurity
from skep.client.topic_info import find_leader
from skep.records.batch import BatchHeader
from skep.records.compression import Codec
from skep.records.record import Record, batches_in, iterate_records
from skep.wire.fetch.fetch_response_reader import FetchResponsePartition

_FETCH_BYTES = 1 << 20
_WAIT_MS = 100
_PAUSE_S = 0.1
_REQUEST_S = 10.0
_USUAL_UNPACKED = 64 << 20
_MOST_RATIO = 4
"""For batches that are large already: they passed max.message.bytes of their topic."""


class Unreadable(Exception):
    """The records from the position to ``last`` cannot be read, however often it is tried."""

    def __init__(self, last: int, why: str) -> None:
        super().__init__(why)
        self.last = last


def largest_unpacked(batch_bytes: int) -> int:
    return max(_USUAL_UNPACKED, _MOST_RATIO * batch_bytes)


class _OpenBatch:
    """A batch whose records are taken in order. Dead records are often single ones of a large batch, which would be
    taken apart anew for each of them."""

    def __init__(self, header: BatchHeader, batch: bytes) -> None:
        self.base_offset = header.base_offset
        self._last_offset = int(header.last_offset)
        most = len(batch) if header.codec == Codec.NONE else largest_unpacked(len(batch))
        self._records = iterate_records(batch, max_size=most)
        self._next: Record | None = None
        self._damage: KafkaError | None = None
        self.position = int(header.base_offset)
        """Records before it were taken."""

    def take(self, first: int, last: int) -> Iterator[Record]:
        """Yields the records from ``first``, which is not before the position, to ``last``. Raises Unreadable."""
        self.position = max(self.position, first)
        try:
            if self._damage is not None:
                raise self._damage
            while (record := self._next or next(self._records, None)) is not None:
                self._next = record
                if record.offset > last:
                    return
                self._next = None
                if record.offset >= first:
                    self.position = record.offset + 1
                    yield record
        except KafkaError as error:
            self._damage = error
            raise Unreadable(self._last_offset, error.detail) from None


class SourceRecords:
    """Owns the connections to brokers, and what was read last. ``group_metadata`` is for offsets in transactions."""

    def __init__(self, client: dict[str, Any], group: str) -> None:
        self._cluster = ClusterClient(
            client["bootstrap.servers"],
            client_id=client.get("client.id", "skep"),
            timeout_s=_REQUEST_S,
            security=ClientSecurity.of(client),
        )
        self._leader: Node | None = None
        self._place: tuple[UUID, int] | None = None
        self._fetched: list[tuple[BatchHeader, bytes]] = []
        """Batches of this place, neighbours in the log."""
        self._open: _OpenBatch | None = None
        """One of them."""
        # It reads nothing, and is no member of the group.
        consumer = Consumer({**client, "group.id": group, "enable.auto.commit": False})
        self.group_metadata: Any = consumer.consumer_group_metadata()
        consumer.close()

    def start_offset(self, topic: str, partition: int, timeout_s: float) -> int:
        """Returns the first offset that the log still has. Raises KafkaException."""
        place = TopicPartition(topic, partition)
        try:
            found = list_offsets(self._cluster, {place: EARLIEST}, committed=False, timeout_s=timeout_s)
        except (ClientError, KafkaError) as error:
            raise _later(str(error)) from None
        return found[place] or 0

    def read(
        self, topic: str, topic_id: UUID, partition: int, first: int, last: int, deadline: float
    ) -> Iterator[Record]:
        """Yields the records that the log has from ``first`` to ``last``, which are not below its start. Those of open
        and aborted transactions too: the share group may be read_uncommitted, and what it was delivered is copied.

        Raises Unreadable for what will never be readable, and KafkaException for what may be later.
        """
        if self._place != (topic_id, partition):
            self.forget()
            self._place = topic_id, partition
        position = first
        while position <= last:
            if not self._has_fetched(position):
                fetched = self._fetch(topic, topic_id, partition, position, deadline)
                self._fetched = list(batches_in(fetched.records))
            reached = position
            for header, batch in self._fetched:
                if header.base_offset > last:
                    return
                if header.last_offset >= position and not header.is_control:
                    yield from self._opened(header, batch, position).take(position, last)
                reached = max(reached, header.last_offset + 1)
            if reached == position:
                # A new leader may not know yet that the records are committed.
                if fetched.high_watermark <= last:
                    raise _later(f"{topic}-{partition} ends at offset {fetched.high_watermark}, before {last}")
                if fetched.records:
                    raise Unreadable(last, f"no whole batch is at offset {position}")
                return  # compaction has removed the rest
            position = reached

    def _has_fetched(self, offset: int) -> bool:
        batches = self._fetched
        return bool(batches) and batches[0][0].base_offset <= offset <= batches[-1][0].last_offset

    def _opened(self, header: BatchHeader, batch: bytes, position: int) -> _OpenBatch:
        found = self._open
        if found is None or found.base_offset != header.base_offset or found.position > position:
            found = self._open = _OpenBatch(header, batch)
        return found

    def forget(self) -> None:
        """Frees the memory of what was read last."""
        self._place, self._fetched, self._open = None, [], None

    def _fetch(
        self, topic: str, topic_id: UUID, partition: int, offset: int, deadline: float
    ) -> FetchResponsePartition:
        """Returns a response without an error. Raises KafkaException if there is none in time."""
        while True:
            try:
                if self._leader is None:
                    found = find_leader(self._cluster, topic, partition)
                    if found.topic_id != topic_id:
                        raise _later(f"topic {topic} has been deleted and created again")
                    self._leader = found.leader
                if self._leader is None:
                    problem = "it has no leader"
                else:
                    fetched = fetch_partition(
                        self._cluster,
                        self._leader,
                        topic,
                        topic_id,
                        partition,
                        offset,
                        max_bytes=_FETCH_BYTES,
                        committed=False,
                        max_wait_ms=_WAIT_MS,
                    )
                    if fetched.error_code is ErrorCode.none:
                        return fetched
                    problem = fetched.error_code.name
            except (ClientError, KafkaError) as error:
                problem = str(error)
            self._leader = None
            if time.monotonic() > deadline or problem == ErrorCode.offset_out_of_range.name:
                raise _later(f"{topic}-{partition} cannot be read at offset {offset}: {problem}")
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        self.forget()
        self._cluster.close()


def _later(why: str) -> KafkaException:
    return KafkaException(ClientKafkaError(ClientKafkaError._TIMED_OUT, why))
