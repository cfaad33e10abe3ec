"""How to send a region of a file from a uvloop server: ``python -m bench.experiments.regions``.

Five servers that differ in nothing else, asked for pieces of 1 MiB by the client of the row ``fetch``, beside the bare
sendfile server that the row is measured against. The file has been read before: it lies in the page cache.
"""

import asyncio
import functools
import mmap
import os
import select
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import cast

import uvloop

from bench.fetching import PIECE_BYTES, PIECES, Transfer, transfer
from bench.peers import apart, reference_server
from bench.raw_client import RawClient
from bench.row import take_turns
from bench.sendfile_server import REGION
from skep.wire.primitives import INT32

PART_BYTES = 512 * 1024
REQUEST_SIZE = 100


class Server(asyncio.Protocol):
    """Owns the file and, for the ways around the transport, a second descriptor of the socket."""

    def __init__(self, path: str, way: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._map = memoryview(mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ))
        self._scratch = memoryview(bytearray(PART_BYTES))
        self._way: Callable[[int, int], None] = getattr(self, f"by_{way}")
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= REQUEST_SIZE:
            position, size = REGION.unpack_from(self._rest)
            self._rest = self._rest[REQUEST_SIZE:]
            self._transport.write(INT32.pack(size))
            self._way(position, position + size)

    def by_pread(self, position: int, end: int) -> None:
        for start in range(position, end, PART_BYTES):
            self._transport.write(os.pread(self._descriptor, min(PART_BYTES, end - start), start))

    def by_mmap(self, position: int, end: int) -> None:
        for start in range(position, end, PART_BYTES):
            self._transport.write(self._map[start : min(start + PART_BYTES, end)])

    def by_scratch(self, position: int, end: int) -> None:
        """pread into one buffer that is used again and again, sent past the transport."""
        while position < end:
            size = os.preadv(self._descriptor, [self._scratch[: min(PART_BYTES, end - position)]], position)
            try:
                position += self._socket.send(self._scratch[:size])
            except BlockingIOError:
                self._when_writable(self.by_scratch, position, end)
                return

    def by_sendfile(self, position: int, end: int) -> None:
        while position < end:
            try:
                position += os.sendfile(self._socket.fileno(), self._descriptor, position, end - position)
            except BlockingIOError:
                self._when_writable(self.by_sendfile, position, end)
                return

    def by_thread(self, position: int, end: int) -> None:
        """sendfile in a thread of the loop's pool, which waits for the socket by select."""
        asyncio.get_running_loop().run_in_executor(None, self._sendfile_waiting, position, end)

    def _sendfile_waiting(self, position: int, end: int) -> None:
        while position < end:
            try:
                position += os.sendfile(self._socket.fileno(), self._descriptor, position, end - position)
            except BlockingIOError:
                select.select([], [self._socket], [])

    def _when_writable(self, go_on: Callable[[int, int], None], position: int, end: int) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._socket.fileno()

        def writable() -> None:
            loop.remove_writer(descriptor)
            go_on(position, end)

        loop.add_writer(descriptor, writable)


async def serve(path: str, way: str) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Server(path, way), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure() -> None:
    ways = ("pread", "mmap", "scratch", "sendfile", "thread")
    regions = [REGION.pack(piece * PIECE_BYTES, PIECE_BYTES).ljust(REQUEST_SIZE) for piece in range(PIECES)]
    with tempfile.NamedTemporaryFile(prefix="skep-bench-") as file:
        for _ in range(PIECES):
            file.write(os.urandom(PIECE_BYTES))
        file.flush()

        def run(module: str, *arguments: str) -> Transfer:
            with (
                reference_server(module, *arguments) as server,
                RawClient(server.address) as client,
                apart(server.pid),
            ):
                return transfer(client, server.pid, regions, 4 + PIECE_BYTES)

        turns = {"bare sendfile": functools.partial(run, "bench.sendfile_server", file.name, str(REQUEST_SIZE))}
        for way in ways:
            turns[way] = functools.partial(run, "bench.experiments.regions", file.name, way)
        results = take_turns(turns, str)
    for name, runs in results.items():
        rates = [found.rate for found in runs]
        least = min(found.cpu_s_per_gb for found in runs)
        print(f"{name:14} {max(rates):6,.0f} MB/s, median {statistics.median(rates):6,.0f}, {least:.2f} s CPU per GB")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        uvloop.run(serve(sys.argv[1], sys.argv[2]))
    else:
        measure()
