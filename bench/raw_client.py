"""A client over a bare socket: the same code against a broker and against its reference, so that it cancels out.

Answers have one size per kind of request, so the client counts bytes instead of reading frames: it is never the
limit, and what it costs does not depend on who answers.
"""

import itertools
import socket
import time
from collections.abc import Callable, Sequence

from skep.wire.primitives import INT32

WINDOW = 128
TIMEOUT_S = 60.0


class RawClient:
    """One blocking connection."""

    def __init__(self, address: str, enter: Callable[[socket.socket], socket.socket] | None = None) -> None:
        """``enter`` does what a listener asks for first: a handshake of TLS, a login."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        if enter is not None:
            self._socket = enter(self._socket)
        # A socket with a time limit polls before each call; the limit is the kernel's instead.
        self._socket.settimeout(None)
        limit = int(TIMEOUT_S).to_bytes(8, "little") + bytes(8)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> bytes:
        """The whole answer, length included."""
        self.send(request)
        return self.receive()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """The next answer, length included."""
        length = self._exactly(4)
        return length + self._exactly(INT32.unpack(length)[0])

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        while view:
            size = self._socket.recv_into(view)
            if size == 0:
                raise RuntimeError("the connection was closed")
            view = view[size:]

    def pipelined(self, requests: Sequence[bytes], count: int, answer_size: int) -> float:
        """Seconds for ``count`` requests, round and round, with WINDOW of them unanswered all the time."""
        # Twice in a row, so that any run of up to WINDOW requests is one slice.
        ring, cycle = _ring(requests)
        size = len(requests[0])
        received = memoryview(bytearray(WINDOW * answer_size))
        started = time.perf_counter()
        sent = min(WINDOW, count)
        self._socket.sendall(ring[: sent * size])
        answered_bytes = answered = 0
        while answered < count:
            got = self._socket.recv_into(received)
            if got == 0:
                raise RuntimeError("the connection was closed")
            answered_bytes += got
            answered = answered_bytes // answer_size
            more = min(answered + WINDOW, count) - sent
            if more > 0:
                start = sent % cycle * size
                self._socket.sendall(ring[start : start + more * size])
                sent += more
        return time.perf_counter() - started

    def one_at_a_time(self, requests: Sequence[bytes], count: int, answer_size: int) -> list[float]:
        """Microseconds of each request from its send to the last byte of its answer."""
        answer = memoryview(bytearray(answer_size))
        send, fill, now = self._socket.sendall, self._fill, time.perf_counter_ns
        took = []
        for request in itertools.islice(itertools.cycle(requests), count):
            started = now()
            send(request)
            fill(answer)
            took.append((now() - started) / 1000)
        return took


def _ring(requests: Sequence[bytes]) -> tuple[memoryview, int]:
    if len({len(request) for request in requests}) != 1:
        raise ValueError("the requests of one run have one size")
    repeats = -(-WINDOW // len(requests))
    return memoryview(b"".join(requests) * repeats * 2), repeats * len(requests)
