"""A connection with several Produce requests in flight, written and read without blocking.

A broker sends the responses of a connection in the order of the requests, so the order tells which response belongs to
which request.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skep.base.errors import DecodeError
from skep.client.connection import Connection
from skep.client.produce.produce_queue import BatchResult, QueuedBatch, results_of
from skep.wire.apis import BEFORE_TRANSACTIONS_V2, PRODUCE
from skep.wire.client_codec import decode_response, request_header
from skep.wire.primitives import INT32
from skep.wire.produce.produce_request import Buffer, produce_request_parts

MAX_PARTS = 64
"""Buffers for one ``sendmsg``; the system takes at most 1024."""

Completed = tuple[Sequence[QueuedBatch], dict[tuple[str, int], BatchResult]]
"""The batches of a request and their results by partition."""


class ProduceOptions(NamedTuple):
    """The fields that are the same in every request of a producer."""

    client_id: str
    transactional_id: str | None
    acks: int
    timeout_ms: int


class _Request(NamedTuple):
    correlation_id: int
    batches: Sequence[QueuedBatch]


class ProducePipe:
    """Owns the requests on a connection, and the connection until ``release``.

    An error closes the connection; ``batches`` then returns what was in flight.
    """

    def __init__(self, connection: Connection, options: ProduceOptions, *, timeout_s: float) -> None:
        self._connection = connection
        self._options = options
        self._request_timeout_s = timeout_s
        self._requests: deque[_Request] = deque()
        self._unsent: deque[memoryview] = deque()
        self._last_progress = 0.0
        try:
            self._version = connection.version_of(BEFORE_TRANSACTIONS_V2[PRODUCE])
        except BaseException:
            connection.close()
            raise
        self._socket = connection.socket
        self._socket.setblocking(False)

    def release(self) -> Connection | None:
        """Returns the connection; None, and it is closed, when a response may still arrive on it."""
        if self._requests or self._unsent or not self._connection.frames.is_empty:
            self._connection.close()
            return None
        return self._connection

    def close(self) -> None:
        self._connection.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    @property
    def is_expiring(self) -> bool:
        """Whether no more requests may be added, because the session of SASL ends soon."""
        return self._connection.is_expiring

    @property
    def wants_to_write(self) -> bool:
        return bool(self._unsent)

    def batches(self) -> list[QueuedBatch]:
        """Returns the batches of every request in flight, in the order in which they were added."""
        return [batch for request in self._requests for batch in request.batches]

    def add(self, batches: Sequence[QueuedBatch]) -> None:
        """Queues one more request; ``write`` sends it."""
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
        if not self._requests:
            self._last_progress = time.monotonic()
        correlation_id = self._connection.next_correlation_id()
        header = request_header(PRODUCE, self._version, correlation_id, options.client_id)
        length = INT32.pack(len(header) + sum(map(len, parts)))
        self._unsent.extend(map(memoryview, (length + header, *parts)))
        self._requests.append(_Request(correlation_id, batches))

    def write(self) -> None:
        """Sends what the socket accepts without blocking. Raises Unreachable when the connection is lost."""
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
            raise self._connection.lost(PRODUCE, error) from None

    def read(self) -> Iterator[Completed]:
        """Yields the requests whose responses have arrived, also those before the end of the connection.

        Raises Unreachable afterwards when the connection is lost, or when nothing was sent or received for as long as a
        request may take.
        """
        failure: OSError | None = None
        frames: list[memoryview] = []
        try:
            while count := self._socket.recv_into(self._connection.frames.get_buffer()):
                frames += self._connection.frames.received(count)
                self._last_progress = time.monotonic()
            failure = ConnectionResetError("the connection was closed")
        except BlockingIOError:
            if self._requests and time.monotonic() - self._last_progress > self._request_timeout_s:
                failure = TimeoutError()
        except OSError as error:
            failure = error
        except DecodeError as error:
            raise self._connection.protocol_error(error) from None
        for frame in frames:
            yield self._complete(frame)
        if failure is not None:
            raise self._connection.lost(PRODUCE, failure)

    def _complete(self, frame: memoryview) -> Completed:
        try:
            correlation_id, response = decode_response(PRODUCE, self._version, frame)
        except DecodeError as error:
            raise self._connection.protocol_error(error) from None
        if not self._requests or self._requests[0].correlation_id != correlation_id:
            raise self._connection.protocol_error(
                DecodeError(f"a response to request {correlation_id}, which is not the next in order")
            )
        return self._requests.popleft().batches, results_of(response)
