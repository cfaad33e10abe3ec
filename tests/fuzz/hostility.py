"""Connections that misbehave: what is sent on them, and what is read of the answers, is left to chance."""

import contextlib
import random
import select
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Sequence

from tests.fuzz.doors import Door, Line
from tests.fuzz.messages import ENDING, Messages

CONNECTIONS = 8
LISTENS, PATIENCE_S = 0.05, 0.02
"""How often a connection waits for what the broker has to say, and how long."""
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Hostility:
    """Several connections to one broker. Owns their sockets; ``done`` counts what was done."""

    def __init__(self, doors: Sequence[Door], messages: Messages, source: random.Random) -> None:
        self._doors = doors
        self._messages = messages
        self._random = source
        self._lines: list[tuple[Door, Line] | None] = [None] * CONNECTIONS
        self._choices = {door: (list(door.kinds), list(door.kinds.values())) for door in doors}
        self.done: Counter[str] = Counter()

    @property
    def frames(self) -> int:
        return self._messages.frames

    def step(self) -> None:
        """One thing on one connection. ConnectionRefusedError when the broker is gone; anything else is expected."""
        place = self._random.randrange(CONNECTIONS)
        try:
            held = self._lines[place]
            if held is None:
                door = self._random.choice(self._doors)
                held = self._lines[place] = (door, door.open())
            self._say(place, *held)
        except WOULD_BLOCK:
            pass  # nothing to read, or the broker has stopped reading: its right
        except ConnectionRefusedError:
            raise
        except OSError:
            self._drop(place)
            self.done["closed by the broker"] += 1

    def _say(self, place: int, door: Door, line: Line) -> None:
        kinds, weights = self._choices[door]
        [kind] = self._random.choices(kinds, weights)
        self.done[kind] += 1
        for piece in self._pieces(self._messages.make(kind, line.dialog)):
            line.socket.send(piece)
        if kind in ENDING or self._random.random() < door.leaves:
            self._drop(place)
        elif self._random.random() < 0.8:
            if self._random.random() < LISTENS:
                select.select([line.socket], [], [], PATIENCE_S)
            self._read(line.socket)

    def close(self) -> None:
        for place in range(CONNECTIONS):
            self._drop(place)

    def _drop(self, place: int) -> None:
        held, self._lines[place] = self._lines[place], None
        if held is None:
            return
        connection = held[1].socket
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
        if kind < 0.05 and len(data) < 300:
            return [data[n : n + 1] for n in range(len(data))]
        if kind < 0.2 and data:
            cut = self._random.randrange(len(data))
            return [data[:cut], data[cut:]]
        return [data]
