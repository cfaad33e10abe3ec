"""A partition from one offset to another, as Arrow batches.

While an answer is decoded and its rows are used, the next one is under way: where it begins is known from the headers
of the batches (``fetching.offset_after``), so it is asked for first. One answer is held at a time, in a buffer that is
used again; what the broker sends meanwhile waits in the socket.

What can pass (a leader that moved, a lost connection, a broker that starts again) costs time: the partition's place is
looked up again and the reading goes on where it was. That place is moved only past whole answers whose rows were all
given out, and rows before it are left out by the decoder, so no offset comes twice or out of order.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.client.arrow_libraries import columnar
from skep.client.cluster_client import ClusterClient, Node, request_timeout_s
from skep.client.connection import Connection
from skep.client.errors import ClientError, OffsetOutOfRange, TopicGone, TopicRecreated, Unreachable
from skep.client.fetch.partition_fetch import (
    FETCH_BY_NAME,
    MAX_WAIT,
    Fetched,
    fetch_body,
    offset_after,
    read_fetch_answer,
)
from skep.client.list_offsets import ASK_AGAIN, EARLIEST, list_ends, list_offsets
from skep.client.retry import Patience
from skep.client.topic_info import GONE_AFTER_S, NO_ID, place_of
from skep.wire.apis import FETCH

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_FETCH_MAX_BYTES = 2 << 20
"""So little that it fits between the sockets: the broker is done with an answer while the one before is decoded. With 8
MiB half of the time went by waiting (170 ns a record; 113 with 2, 135 with 4, 139 with 1)."""
DEFAULT_MAX_ROWS = 10_000
_PASSING = ASK_AGAIN | {
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.unknown_server_error,
    ErrorCode.network_exception,
}
_EMPTY_PAUSE_S = 0.02
_FIRST_GUESS = 128
"""Bytes of a record, before any was seen; when they are larger, a short range takes one more fetch."""
_SMALLEST_FETCH = 64 << 10


class PartitionReader:
    """Iterates over RecordBatches with the records from ``start`` up to ``end``; ends there also when they are gaps.

    ``committed`` leaves out what is not committed, and waits for transactions that are open below ``end``. Without
    ``topic_id`` the topic is the one that has the name at the beginning. After ``timeout_s`` without progress
    (the cluster's, if None) TimedOut, which says what it was waiting for.

    ``position`` is where the next answer begins: all before it was given out.
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
        self._patience = Patience(cluster, self._timeout_s, f"partition {topic}-{partition}")
        self._place: tuple[Node, Connection] | None = None
        self._version = 0
        self._asked: int | None = None  # the offset of the fetch that is under way
        self._buffer = bytearray()
        self._advanced = 0  # offsets that were passed by bytes_fetched
        self._gone_since: float | None = None
        self._empty_answers = 0

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        decoder_class = columnar().Decoder
        self._patience.progress()
        try:
            while self.position < self._end:
                fetched = self._fetch()
                following = offset_after(fetched.records, self.position)
                if following == self.position:
                    self._nothing_in(fetched)
                    continue
                self._advanced += following - self.position
                self._empty_answers = 0
                if following < self._end:
                    self._ask_ahead(following)
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
                # Whoever uses the rows may take as long as they like.
                self._patience.progress()
        finally:
            self.close()

    def close(self) -> None:
        """Gives the connection back. An iteration that has come to its end, or was left, has done it."""
        if self._place is not None:
            self._cluster.give_back(*self._place)
        self._place, self._asked = None, None

    @property
    def _name(self) -> str:
        return f"{self._topic}-{self._partition}"

    def _fetch(self) -> Fetched:
        """What the partition has from our position on; asked again until it is an answer."""
        while True:
            try:
                _, connection = self._place or self._find()
                if self._asked != self.position:
                    if self._asked is not None:
                        connection.receive_frame()
                    self._ask(connection, self.position)
                fetched = self._receive(connection)
            except Unreachable as error:
                self.close()
                self._patience.wait(str(error))
                continue
            if fetched is None:
                self._patience.wait(f"the broker at {connection.address} sends nothing", _EMPTY_PAUSE_S)
            elif fetched.error_code is ErrorCode.none:
                return fetched
            else:
                self._judge(fetched.error_code, connection.address)

    def _find(self) -> tuple[Node, Connection]:
        """Connects to the leader; waits until there is one."""
        while True:
            try:
                place = place_of(self._cluster, self._topic, self._partition)
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_topic_or_partition:
                    raise
                self._believe_gone(TopicGone(f"topic '{self._topic}' is gone"))
                continue
            if self._topic_id is None:
                self._topic_id = place.topic_id
            if NO_ID not in (self._topic_id, place.topic_id) and place.topic_id != self._topic_id:
                self._believe_gone(
                    TopicRecreated(
                        f"topic '{self._topic}' was deleted and made again: it has the id {place.topic_id}, "
                        f"the one to be read had {self._topic_id}"
                    )
                )
                continue
            self._gone_since = None
            if place.leader is None:
                self._patience.wait(f"there is no leader of partition {self._name}, or no such partition")
                continue
            connection = self._cluster.take_connection(place.leader)
            self._place = place.leader, connection
            # While there is nothing to read, the broker keeps quiet for MAX_WAIT.
            connection.set_timeout(max(request_timeout_s(self._timeout_s), 2 * MAX_WAIT.total_seconds()))
            return self._place

    def _believe_gone(self, error: ClientError) -> None:
        now = self._cluster.clock.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        if now - self._gone_since >= min(GONE_AFTER_S, self._timeout_s):
            raise error
        self._cluster.look_elsewhere()
        self._patience.wait(str(error))

    def _ask(self, connection: Connection, offset: int) -> None:
        body = fetch_body(
            self._topic,
            self._topic_id or NO_ID,
            self._partition,
            offset,
            max_bytes=self._max_bytes(offset),
            committed=self._committed,
            max_wait=MAX_WAIT,
        )
        self._version = connection.send(FETCH if self._topic_id != NO_ID else FETCH_BY_NAME, body)
        self._asked = offset

    def _ask_ahead(self, offset: int) -> None:
        if self._place is not None:
            try:
                self._ask(self._place[1], offset)
            except Unreachable:
                # When the rows at hand are used up, it is looked for again.
                self.close()

    def _max_bytes(self, offset: int) -> int:
        """No more than what is left will need, by the records seen so far: the end may be far from that of the log."""
        size = self.bytes_fetched / self._advanced if self._advanced else _FIRST_GUESS
        needed = int(size * (self._end - offset) * 1.1) + _SMALLEST_FETCH
        return min(self._fetch_max_bytes, needed)

    def _receive(self, connection: Connection) -> Fetched | None:
        frame = connection.receive_frame(self._buffer)
        self._asked = None
        if isinstance(frame.obj, bytearray):
            self._buffer = frame.obj
        try:
            fetched = read_fetch_answer(self._version, frame)
        except DecodeError as error:
            connection.close()
            raise ClientError(f"what {connection.address} answered is not Kafka's protocol: {error}") from None
        if fetched is not None:
            self.bytes_fetched += len(fetched.records)
        return fetched

    def _judge(self, code: ErrorCode, address: str) -> None:
        """Returns when the same is to be asked again."""
        self.close()
        if code is ErrorCode.offset_out_of_range:
            self._check_range()
        elif code not in _PASSING:
            raise KafkaError(code, f"the broker at {address} refuses partition {self._name}: {code.name}")
        self._cluster.look_elsewhere()
        self._patience.wait(f"the broker at {address} answered {code.name} for partition {self._name}")

    def _check_range(self) -> None:
        key = (self._topic, self._partition)
        try:
            begins = list_offsets(self._cluster, {key: EARLIEST}, committed=False)[key] or 0
            ends = list_ends(self._cluster, {key: self.position}, committed=False)[key]
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            return  # The topic has gone meanwhile, which is found out when its leader is looked for.
        if not begins <= self.position <= ends:
            raise OffsetOutOfRange(self._topic, self._partition, self.position, begins, ends)

    def _nothing_in(self, fetched: Fetched) -> None:
        """An answer without a whole batch: there is nothing, or not yet."""
        if fetched.records:
            raise KafkaError(
                ErrorCode.corrupt_message, f"partition {self._name} at {self.position}: no whole record batch"
            )
        high_watermark, last_stable_offset = fetched.high_watermark, fetched.last_stable_offset
        readable = last_stable_offset if self._committed else high_watermark
        if readable >= self._end:
            # The rest was compacted away. Said once more, so that no odd moment of a broker ends the reading.
            self._empty_answers += 1
            if self._empty_answers > 1:
                self.position = self._end
            return
        reason = f"offset {self._end} is to be read up to and the log ends at {high_watermark}"
        if self._committed and last_stable_offset < high_watermark:
            reason = (
                f"an open transaction holds it back at offset {last_stable_offset}, "
                f"{self._end} is to be read up to and the log ends at {high_watermark}"
            )
        address = self._place[1].address if self._place else "?"
        self._patience.wait(f"{reason} (broker at {address})", _EMPTY_PAUSE_S)
