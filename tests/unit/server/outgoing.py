"""What the tests of the sender share: a transport that keeps what it is given, a file in memory, and a client."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from skep.base.errors import StorageError
from skep.base.files.file_region import FileRegion
from skep.server.sender import Sender
from skep.wire.primitives import INT32

PATIENCE_S = 30.0


class FakeTransport:
    """Gives the socket what that takes and keeps the rest, all of it while ``is_stuck``."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._backlog = bytearray()
        self.writes: list[bytes] = []
        self.is_stuck = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self._backlog += data
        self.drain()

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._backlog and not self.is_stuck:
                del self._backlog[: self._socket.send(self._backlog)]

    def get_write_buffer_size(self) -> int:
        return len(self._backlog)

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self._socket


class FakeFile:
    """A file in memory that has a descriptor, is in the page cache or not, and can be made to fail or to wait."""

    path = "eggs-0/00000000000000000000.log"
    has_descriptor = True

    def __init__(self, content: bytes) -> None:
        self.descriptor = os.memfd_create("eggs")
        os.write(self.descriptor, content)
        self.is_cold = False
        self.failure: StorageError | None = None
        self.may_read = threading.Event()
        self.may_read.set()
        self.readers: list[int] = []
        self.reads_ended = 0

    def is_cached(self, position: int, size: int) -> bool:
        return not self.is_cold

    def read(self, position: int, size: int) -> bytes:
        self.readers.append(threading.get_ident())
        try:
            assert self.may_read.wait(PATIENCE_S)
            if self.failure is not None:
                raise self.failure
            return os.pread(self.descriptor, size, position)
        finally:
            self.reads_ended += 1

    @contextlib.contextmanager
    def pinned(self) -> Iterator[int]:
        yield self.descriptor


class Outgoing:
    """A sender whose client is the other end of a socket pair."""

    def __init__(self) -> None:
        connected, self.client = socket.socketpair()
        connected.setblocking(False)
        self.client.setblocking(False)
        self._connected = connected
        self.files: list[FakeFile] = []
        self._executor = ThreadPoolExecutor(1)
        self.transport = FakeTransport(connected)
        self.idle_calls = 0
        self.failures: list[StorageError] = []
        transport: Any = self.transport
        self.sender = Sender(transport, self._executor, self._idle, self.failures.append)

    def _idle(self) -> None:
        self.idle_calls += 1

    def region(self, content: bytes, *, is_cold: bool = False) -> FileRegion:
        """All of a new file, the last of ``files``."""
        file: Any = FakeFile(content)
        file.is_cold = is_cold
        self.files.append(file)
        return FileRegion(file, 0, len(content))

    def make_narrow(self) -> None:
        """The socket takes a few thousand bytes and no more before the client has read."""
        self._connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    def received(self) -> bytes:
        """All that has reached the client and was not yet looked at."""
        data = bytearray()
        with contextlib.suppress(BlockingIOError):
            while piece := self.client.recv(1 << 20):
                data += piece
                self.transport.drain()
        return bytes(data)

    async def receive(self, size: int) -> bytes:
        data = bytearray()

        def is_all_there() -> bool:
            data.extend(self.received())
            return len(data) >= size

        await until(is_all_there)
        return bytes(data)

    def release(self) -> None:
        self.sender.close()
        for file in self.files:
            file.may_read.set()
        self._executor.shutdown()
        for file in self.files:
            os.close(file.descriptor)
        self._connected.close()
        self.client.close()


async def turns(number: int) -> None:
    """Lets the event loop go round so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.001)


def framed(*parts: bytes) -> bytes:
    return INT32.pack(sum(map(len, parts))) + b"".join(parts)


def open_descriptors() -> set[int]:
    # One of the names is the listing itself, which is over.
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}
