"""Connections that misbehave: what is sent on them, and what is read of the answers, is left to chance."""

import contextlib
import random
import socket
import struct
from collections import Counter

from tests.fuzz.mutations import mutated
from tests.fuzz.requests import RequestMaker

CONNECTIONS = 8
PATIENCE_S = 10.0


class Hostility:
    """Several connections to one broker. Owns their sockets; ``done`` counts what was done."""

    def __init__(self, bootstrap_servers: str, source: random.Random) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._address = (host, int(port))
        self._random = source
        self._requests = RequestMaker(source, ("fuzzed-a", "fuzzed-b", "retention.ms", "segment.bytes", "1", "100"))
        self._sockets: list[socket.socket | None] = [None] * CONNECTIONS
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """One thing on one connection. ConnectionRefusedError when the broker is gone; anything else is expected."""
        place = self._random.randrange(CONNECTIONS)
        connection = self._sockets[place]
        if connection is None:
            connection = self._sockets[place] = socket.create_connection(self._address, PATIENCE_S)
            connection.setblocking(False)
        weights, actions = zip(*((weight, action) for action, weight in ACTIONS.items()), strict=True)
        action = self._random.choices(actions, weights)[0]
        self.done[action] += 1
        try:
            data = getattr(self, "_" + action)()
            for piece in self._pieces(data):
                connection.send(piece)
            if action in ENDING or self._random.random() < 0.02:
                self._drop(place)
            elif self._random.random() < 0.8:
                self._read(connection)
        except BlockingIOError:
            pass  # nothing to read, or the broker has stopped reading: its right
        except OSError:
            self._drop(place)
            self.done["closed by the broker"] += 1

    def close(self) -> None:
        for place in range(CONNECTIONS):
            self._drop(place)

    def _drop(self, place: int) -> None:
        connection, self._sockets[place] = self._sockets[place], None
        if connection is not None:
            with contextlib.suppress(OSError):
                if self._random.random() < 0.3:
                    # A reset instead of an orderly end.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    def _read(self, connection: socket.socket) -> None:
        while answer := connection.recv(1 << 16):
            self.done["bytes read"] += len(answer)
        raise ConnectionResetError

    def _pieces(self, data: bytes) -> list[bytes]:
        kind = self._random.random()
        if kind < 0.1 and len(data) < 300:
            return [data[n : n + 1] for n in range(len(data))]
        if kind < 0.3 and data:
            cut = self._random.randrange(len(data))
            return [data[:cut], data[cut:]]
        return [data]

    # What is sent.

    def _good_request(self) -> bytes:
        return framed(self._requests.frame(*self._requests.any_api()))

    def _mutated_request(self) -> bytes:
        return framed(mutated(self._random, self._requests.frame(*self._requests.any_api())))

    def _mutated_stream(self) -> bytes:
        stream = b"".join(self._good_request() for _ in range(self._random.randint(1, 5)))
        return mutated(self._random, stream)

    def _random_frame(self) -> bytes:
        return framed(self._random.randbytes(self._random.choice((1, 8, 10, 50, 500))))

    def _random_body(self) -> bytes:
        api, version = self._requests.any_api()
        header = struct.pack(">hhihb", api.key, version, 1, -1, 0)
        return framed(header + self._random.randbytes(self._random.choice((0, 1, 10, 100))))

    def _odd_version(self) -> bytes:
        api, _ = self._requests.any_api()
        return framed(struct.pack(">hhihb", api.key, self._random.choice((-1, 12, 99, 32767)), 1, -1, 0))

    def _random_bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice((1, 4, 100, 10_000)))

    def _half_a_frame(self) -> bytes:
        data = self._good_request()
        return data[: self._random.randrange(len(data))]

    def _large_announcement(self) -> bytes:
        length = self._random.choice((2**31 - 1, 100 << 20, (100 << 20) + 1, 1 << 20, -1, 0))
        return struct.pack(">i", length) + bytes(self._random.choice((0, 10, 70_000)))


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


ACTIONS = {
    "good_request": 20,
    "mutated_request": 50,
    "mutated_stream": 10,
    "random_frame": 5,
    "random_body": 10,
    "odd_version": 3,
    "random_bytes": 4,
    "half_a_frame": 4,
    "large_announcement": 3,
}
ENDING = ("half_a_frame",)
