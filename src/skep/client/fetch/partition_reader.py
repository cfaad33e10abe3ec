"""A reader of one partition between two offsets, which returns Arrow batches.

The next request is in flight while a response is decoded and its rows are used: the batch headers tell where it begins
(``partition_fetch.offset_after``), so it is sent before the decoding. The reader holds one response at a time, in a
buffer that is reused; further responses wait in the connection.

A transient failure (a leader that moved, a lost connection, a broker that restarts) costs time: the reader looks the
leader up again and continues at its position. The position only moves past whole responses whose rows were all
returned, and the decoder leaves out rows before it, so no offset is returned twice or out of order.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.base.ids import TopicPartition, show_topic_id
from skep.client.arrow_libraries import columnar
from skep.client.cluster_client import ClusterClient, Node, request_timeout_s
from skep.client.connection import Connection
from skep.client.errors import ClientError, OffsetOutOfRange, TopicGone, TopicRecreated, Unreachable
from skep.client.fetch.partition_fetch import MAX_WAIT_MS, fetch_api, fetch_body, offset_after, read_fetched
from skep.client.list_offsets import EARLIEST, list_ends, list_offsets
from skep.client.retry import RETRIABLE_FOR_READ, Retry
from skep.client.topic_info import GONE_AFTER_S, NO_ID, find_leader
from skep.wire.fetch.fetch_response_reader import FetchResponsePartition

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_FETCH_MAX_BYTES = 2 << 20
"""A response of this size fits into the buffers of the two sockets: the broker has sent it by the time the one before
is decoded. With 8 MiB half of the time was spent waiting (170 ns a record; 113 with 2, 135 with 4, 139 with 1)."""
DEFAULT_MAX_ROWS = 10_000
_EMPTY_PAUSE_S = 0.02
_FIRST_GUESS = 128
"""Bytes of a record, before any was read; when records are larger, a short range takes one more fetch."""
_SMALLEST_FETCH = 64 << 10


class PartitionReader:
    """Iterates over RecordBatches with the records from ``start`` up to ``end``, which may be gaps.

    ``committed`` leaves out aborted records, and waits for transactions that are open below ``end``. Without
    ``topic_id`` the reader takes the topic that has the name when it begins. After ``timeout_s`` without progress (the
    cluster's, if None) it raises TimedOut, with what it was waiting for.

    ``position`` is where the next response begins: everything before it has been returned.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        topic_id: UUID | None,
        partition: int,
        *,
        start: int,
        end: int,
        committed: bool = True,
        headers: bool = False,
        fetch_max_bytes: int = DEFAULT_FETCH_MAX_BYTES,
        max_rows: int = DEFAULT_MAX_ROWS,
        timeout_s: float | None = None,
    ) -> None:
        self.position = start
        self.bytes_fetched = 0
        self._cluster = cluster
        self._topic, self._topic_id, self._partition = topic, topic_id, partition
        self._end = end
        self._committed, self._headers, self._max_rows = committed, headers, max_rows
        self._fetch_max_bytes = fetch_max_bytes
        self._timeout_s = cluster.timeout_s if timeout_s is None else timeout_s
        self._retry = Retry(cluster, f"partition {topic}-{partition}", self._timeout_s)
        self._leader: tuple[Node, Connection] | None = None
        self._version = 0
        self._requested: int | None = None  # the offset of the request in flight
        self._frame: memoryview | None = None  # the last response; its records are used until the next one
        self._advanced = 0  # offsets that bytes_fetched cover
        self._gone_since: float | None = None
        self._empty_responses = 0

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        decoder_class = columnar().Decoder
        self._retry.progress()
        try:
            while self.position < self._end:
                fetched = self._fetch()
                following = offset_after(fetched.records, self.position)
                if following == self.position:
                    self._handle_empty(fetched)
                    continue
                self._advanced += following - self.position
                self._empty_responses = 0
                if following < self._end:
                    self._request_ahead(following)
                decoder = decoder_class(
                    fetched.records,
                    start=self.position,
                    end=self._end,
                    aborted=fetched.aborted,
                    committed=self._committed,
                    headers=self._headers,
                    max_rows=self._max_rows,
                )
                try:
                    yield from decoder
                except KafkaError as error:
                    raise KafkaError(error.code, f"partition {self._name}: {error.detail}") from None
                if decoder.next_offset <= self.position:
                    raise KafkaError(
                        ErrorCode.corrupt_message, f"partition {self._name} at {self.position}: no record batch"
                    )
                self.position = decoder.next_offset
                # The time that the caller spends on the rows does not count.
                self._retry.progress()
        finally:
            self.close()

    def close(self) -> None:
        """Releases the connection. The end of an iteration, and leaving one, does it too."""
        if self._leader is not None:
            self._cluster.release_connection(*self._leader)
        self._leader, self._requested, self._frame = None, None, None

    @property
    def _name(self) -> str:
        return f"{self._topic}-{self._partition}"

    def _fetch(self) -> FetchResponsePartition:
        """Returns the first response without an error for the position."""
        while True:
            try:
                _, connection = self._leader or self._connect_to_leader()
                if self._requested != self.position:
                    if self._requested is not None:
                        connection.receive_frame()
                    self._request(connection, self.position)
                fetched = self._receive(connection)
            except Unreachable as error:
                self.close()
                self._retry.wait(str(error))
                continue
            if fetched is None:
                self._retry.wait(f"the broker at {connection.address} returns no partition", _EMPTY_PAUSE_S)
            elif fetched.error_code is ErrorCode.none:
                return fetched
            else:
                self._handle_error(fetched.error_code, connection.address)

    def _connect_to_leader(self) -> tuple[Node, Connection]:
        """Waits until there is a leader."""
        while True:
            try:
                topic_id, leader = find_leader(self._cluster, self._topic, self._partition)
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_topic_or_partition:
                    raise
                self._raise_if_lasting(TopicGone(f"topic '{self._topic}' was deleted"))
                continue
            if self._topic_id is None:
                self._topic_id = topic_id
            if NO_ID not in (self._topic_id, topic_id) and topic_id != self._topic_id:
                self._raise_if_lasting(
                    TopicRecreated(
                        f"topic '{self._topic}' was deleted and created again: it has the id "
                        f"{show_topic_id(topic_id)}, the one to be read had {show_topic_id(self._topic_id)}"
                    )
                )
                continue
            self._gone_since = None
            if leader is None:
                self._retry.wait(f"partition {self._name} has no leader, or does not exist")
                continue
            connection = self._cluster.acquire_connection(leader)
            self._leader = leader, connection
            # The broker may be silent for MAX_WAIT_MS while there is nothing to read.
            connection.set_timeout(max(request_timeout_s(self._timeout_s), 2 * MAX_WAIT_MS / 1000))
            return self._leader

    def _raise_if_lasting(self, error: ClientError) -> None:
        now = self._cluster.clock.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        if now - self._gone_since >= min(GONE_AFTER_S, self._timeout_s):
            raise error
        self._cluster.switch_metadata_broker()
        self._retry.wait(str(error))

    def _request(self, connection: Connection, offset: int) -> None:
        topic_id = self._topic_id or NO_ID
        api = fetch_api(topic_id)
        self._version = connection.version_of(api)
        body = fetch_body(
            self._version,
            self._topic,
            topic_id,
            self._partition,
            offset,
            max_bytes=self._max_bytes(offset),
            committed=self._committed,
        )
        connection.send(api, body, version=self._version)
        self._requested = offset

    def _request_ahead(self, offset: int) -> None:
        if self._leader is not None:
            try:
                self._request(self._leader[1], offset)
            except Unreachable:
                # The leader is looked up again when the rows at hand are used up.
                self.close()

    def _max_bytes(self, offset: int) -> int:
        """Returns no more than the rest will need, by the records read so far: ``end`` may be far from the log's."""
        size = self.bytes_fetched / self._advanced if self._advanced else _FIRST_GUESS
        needed = int(size * (self._end - offset) * 1.1) + _SMALLEST_FETCH
        return min(self._fetch_max_bytes, needed)

    def _receive(self, connection: Connection) -> FetchResponsePartition | None:
        if self._frame is not None:
            connection.frames.recycle(self._frame)
        frame = self._frame = connection.receive_frame()
        self._requested = None
        try:
            fetched = read_fetched(self._version, frame)
        except DecodeError as error:
            raise connection.protocol_error(error) from None
        if fetched is not None:
            self.bytes_fetched += len(fetched.records)
        return fetched

    def _handle_error(self, code: ErrorCode, address: str) -> None:
        """Returns when the request is to be repeated."""
        self.close()
        if code is ErrorCode.offset_out_of_range:
            self._check_range()
        elif code not in RETRIABLE_FOR_READ:
            raise KafkaError(code, f"the broker at {address} refuses partition {self._name}: {code.name}")
        self._cluster.switch_metadata_broker()
        self._retry.wait(f"the broker at {address} returned {code.name} for partition {self._name}")

    def _check_range(self) -> None:
        key = TopicPartition(self._topic, self._partition)
        try:
            log_start = list_offsets(self._cluster, {key: EARLIEST}, committed=False)[key] or 0
            end = list_ends(self._cluster, {key: self.position}, committed=False)[key]
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            return  # The topic was deleted meanwhile, which the next lookup of its leader reports.
        if not log_start <= self.position <= end:
            raise OffsetOutOfRange(self._topic, self._partition, self.position, log_start, end)

    def _handle_empty(self, fetched: FetchResponsePartition) -> None:
        """Handles a response without a whole batch: there are no records, or not yet."""
        if fetched.records:
            raise KafkaError(
                ErrorCode.corrupt_message, f"partition {self._name} at {self.position}: no whole record batch"
            )
        high_watermark, last_stable_offset = fetched.high_watermark, fetched.last_stable_offset
        readable = last_stable_offset if self._committed else high_watermark
        if readable >= self._end:
            # Compaction removed the rest. A second response must confirm it, so that no odd moment of a broker ends
            # the reading.
            self._empty_responses += 1
            if self._empty_responses > 1:
                self.position = self._end
            return
        reason = f"reading up to offset {self._end}, and the log ends at {high_watermark}"
        if self._committed and last_stable_offset < high_watermark:
            reason = (
                f"an open transaction holds back records from offset {last_stable_offset} on: "
                f"reading up to {self._end}, and the log ends at {high_watermark}"
            )
        address = self._leader[1].address if self._leader else "?"
        self._retry.wait(f"{reason} (broker at {address})", _EMPTY_PAUSE_S)
