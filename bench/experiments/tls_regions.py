"""How file regions best go through TLS: ``python -m bench.experiments.tls_regions``.

A server on uvloop sends a file of 64 MiB, again and again, through the TLS transport: pieces that are read, and pieces
of a map of the file. It prints megabytes a second of the server's processor time, because the client, in a process of
its own, takes as long. A plaintext ``sendfile`` is the measure of both.
"""

import asyncio
import mmap
import multiprocessing
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvloop

from skep.security.tls.certificate_authority import LOCAL_HOSTS, CertificateAuthority

FILE_BYTES = 64 << 20
ROUNDS = 8
WAYS = ("read", "map")


def take(port: int, authority: str | None) -> None:
    """The client: reads everything and throws it away."""
    taken: socket.socket = socket.create_connection(("127.0.0.1", port))
    if authority is not None:
        taken = ssl.create_default_context(cafile=authority).wrap_socket(taken, server_hostname="localhost")
    buffer = bytearray(1 << 20)
    while taken.recv_into(buffer):
        pass


class Sends(asyncio.Protocol):
    """Sends pieces for as long as the transport takes them."""

    def __init__(self, next_piece: Callable[[], Any], done: "asyncio.Future[float]") -> None:
        self._next_piece = next_piece
        self._done = done
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1 << 20)
        self._begun = time.process_time()
        self._pump()

    def _pump(self) -> None:
        for _ in range(4):
            if self._paused:
                return
            if (piece := self._next_piece()) is None:
                self._transport.close()
                return
            self._transport.write(piece)
        asyncio.get_running_loop().call_soon(self._pump)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(time.process_time() - self._begun)


def pieces(way: str, descriptor: int, size: int) -> Callable[[], Any]:
    position = 0
    whole = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)) if way == "map" else None

    def next_piece() -> Any:
        nonlocal position
        start = position % FILE_BYTES
        if position >= FILE_BYTES * ROUNDS:
            return None
        position += size
        return os.pread(descriptor, size, start) if whole is None else whole[start : start + size]

    return next_piece


async def through_tls(directory: Path, way: str, size: int, descriptor: int) -> float:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "broker.pem")
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()
    next_piece = pieces(way, descriptor, size)
    server = await loop.create_server(lambda: Sends(next_piece, done), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    client = multiprocessing.get_context("spawn").Process(target=take, args=(port, str(directory / "ca.pem")))
    client.start()
    took = await done
    client.join()
    server.close()
    return took


def by_sendfile(descriptor: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = multiprocessing.get_context("spawn").Process(target=take, args=(port, None))
        client.start()
        connection, _ = server.accept()
        begun = time.process_time()
        with connection:
            for _ in range(ROUNDS):
                sent = 0
                while sent < FILE_BYTES:
                    sent += os.sendfile(connection.fileno(), descriptor, sent, 1 << 20)
        took = time.process_time() - begun
        client.join()
    return took


def main() -> None:
    megabytes = FILE_BYTES * ROUNDS / 1e6
    with tempfile.TemporaryDirectory(prefix="skep-") as name:
        directory = Path(name) / "ca"
        CertificateAuthority.create(directory).sign_broker(LOCAL_HOSTS)
        file = Path(name) / "segment"
        file.write_bytes(os.urandom(FILE_BYTES))
        descriptor = os.open(file, os.O_RDONLY)
        print(f"sendfile, plaintext: {megabytes / by_sendfile(descriptor):.0f} MB/s of processor time")
        for size in (64 << 10, 256 << 10, 1 << 20):
            for way in WAYS:
                took = uvloop.run(through_tls(directory, way, size, descriptor))
                print(f"{way}, pieces of {size >> 10} KiB: {megabytes / took:.0f} MB/s of processor time")


if __name__ == "__main__":
    main()
