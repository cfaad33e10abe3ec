"""A connection that several Produce requests are under way on: written and read as far as the socket lets, no further.

Which answer belongs to which request follows from the order: a broker answers the requests of a connection in theirs.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skep.base.errors import DecodeError
from skep.client.connection import MAX_ANSWER_BYTES, Connection
from skep.client.produce.produce_queue import Answer, Batch, answers_of
from skep.wire.apis import PRODUCE
from skep.wire.client_codec import decode_response, request_header
from skep.wire.primitives import INT32
from skep.wire.produce.produce_request import Buffer, produce_request_parts

MAX_PARTS = 64
"""Buffers for one ``sendmsg``; the system takes at most 1024."""

Answered = tuple[Sequence[Batch], dict[tuple[str, int], Answer]]


class ProduceOptions(NamedTuple):
    """What is the same in every request of a producer."""

    client_id: str
    transactional_id: str | None
    acks: int
    timeout_ms: int


class _UnderWay(NamedTuple):
    correlation_id: int
    batches: Sequence[Batch]


class ProducePipe:
    """Owns the requests on a connection, and that until ``release``. After an error it is closed, and ``batches`` says
    what it held."""

    def __init__(self, connection: Connection, options: ProduceOptions, *, timeout_s: float) -> None:
        self._connection = connection
        self._options = options
        self._request_timeout_s = timeout_s
        self._under_way: deque[_UnderWay] = deque()
        self._unsent: deque[memoryview] = deque()
        self._received = bytearray()
        self._last_progress = 0.0
        try:
            self._version = connection.version_of(PRODUCE)
        except BaseException:
            connection.close()
            raise
        self._socket = connection.socket
        self._socket.setblocking(False)

    def release(self) -> Connection | None:
        """The connection, for others to use; None, and it is closed, when an answer may still come on it."""
        if self._under_way or self._unsent or self._received:
            self._connection.close()
            return None
        return self._connection

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    @property
    def wants_to_write(self) -> bool:
        return bool(self._unsent)

    def batches(self) -> list[Batch]:
        """The batches of every request that has no answer, in the order in which they were given."""
        return [batch for request in self._under_way for batch in request.batches]

    def give(self, batches: Sequence[Batch]) -> None:
        """Takes one more request; ``write`` sends it."""
        topics: dict[str, list[tuple[int, Buffer]]] = {}
        for batch in batches:
            topics.setdefault(batch.partition.topic, []).append((batch.partition.index, batch.data))
        options = self._options
        parts = produce_request_parts(
            self._version,
            topics,
            transactional_id=options.transactional_id,
            acks=options.acks,
            timeout_ms=options.timeout_ms,
        )
        if not self._under_way:
            self._last_progress = time.monotonic()
        correlation_id = self._connection.next_correlation_id()
        header = request_header(PRODUCE, self._version, correlation_id, options.client_id)
        length = INT32.pack(len(header) + sum(map(len, parts)))
        self._unsent.extend(map(memoryview, (length + header, *parts)))
        self._under_way.append(_UnderWay(correlation_id, batches))

    def write(self) -> None:
        """Sends what the socket takes at once. Unreachable when the connection is lost."""
        unsent = self._unsent
        try:
            while unsent:
                sent = self._socket.sendmsg([unsent[place] for place in range(min(len(unsent), MAX_PARTS))])
                self._last_progress = time.monotonic()
                while sent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = unsent[0][sent:]
        except BlockingIOError:
            return
        except OSError as error:
            raise self._connection.broken(PRODUCE, error) from None

    def read(self) -> Iterator[Answered]:
        """The answers that are there, one by one: each counts, even if what follows is the end of the connection.

        Unreachable when that is lost, or when nothing has gone either way for as long as a request may take.
        """
        failure: OSError | None = None
        try:
            while piece := self._socket.recv(1 << 16):
                self._received += piece
                self._last_progress = time.monotonic()
            failure = ConnectionResetError("the connection was closed")
        except BlockingIOError:
            if self._under_way and time.monotonic() - self._last_progress > self._request_timeout_s:
                failure = TimeoutError()
        except OSError as error:
            failure = error
        while (frame := self._next_frame()) is not None:
            yield self._answer_in(frame)
        if failure is not None:
            raise self._connection.broken(PRODUCE, failure)

    def _next_frame(self) -> bytes | None:
        received = self._received
        if len(received) < INT32.size:
            return None
        (length,) = INT32.unpack_from(received)
        if not INT32.size <= length <= MAX_ANSWER_BYTES:
            raise self._connection.nonsense(DecodeError(f"an answer of {length} bytes"))
        end = INT32.size + length
        if len(received) < end:
            return None
        frame = bytes(memoryview(received)[INT32.size : end])
        del received[:end]
        return frame

    def _answer_in(self, frame: bytes) -> Answered:
        try:
            correlation_id, response = decode_response(PRODUCE, self._version, frame)
        except DecodeError as error:
            raise self._connection.nonsense(error) from None
        if not self._under_way or self._under_way[0].correlation_id != correlation_id:
            raise self._connection.nonsense(
                DecodeError(f"an answer to request {correlation_id}, which is not the next")
            )
        return self._under_way.popleft().batches, answers_of(response)
