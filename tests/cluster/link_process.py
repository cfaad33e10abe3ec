"""The network between the members of a test cluster, as a process: ``python -m tests.cluster.link_process``.

It stands in front of every member and passes bytes on. A direction, ``1>2``, can be cut: its bytes are held back and
delivered when it is healed, as TCP does it by sending again. Both sides keep their connections and hear nothing; a
connection that is made meanwhile is made and stays silent. Cutting ``1>2`` alone lets the requests of 2 arrive at 1 and
takes the answers. A direction can also be garbled: one byte of each larger piece is changed. Connections can be
dropped: both sides are told at once, and what was on its way is lost.

Who has connected is told by the client id in the first request: brokers say ``broker-N...``, all others are
``client``. For members that speak another protocol (ZooKeeper) each source has a port of its own.

It obeys lines on its standard input and answers each with one; it ends when that ends.
"""

import asyncio
import re
import sys
from collections.abc import Callable

import uvloop

PIECE_BYTES = 1 << 16
LARGER = 120
_FIRST_BYTES = 16
_BROKER = re.compile(rb"broker-(\d+)")


class Network:
    """Owns the state of every direction. ``open`` has an event, set while bytes may pass, for each that was cut."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = {}
        self._garbled: set[str] = set()
        self._servers: list[asyncio.Server] = []
        self._connections: dict[str, set[asyncio.StreamWriter]] = {}

    def cut(self, direction: str) -> None:
        self._open.setdefault(direction, asyncio.Event()).clear()

    def heal(self, direction: str) -> None:
        if direction in self._open:
            self._open[direction].set()
        self._garbled.discard(direction)

    def garble(self, direction: str) -> None:
        self._garbled.add(direction)

    def drop(self, direction: str) -> None:
        for writer in self._connections.get(direction, ()):
            writer.transport.abort()

    async def passable(self, direction: str) -> None:
        # Again after each wait: it may have been cut once more before we ran.
        while (event := self._open.get(direction)) is not None and not event.is_set():
            await event.wait()

    def piece(self, direction: str, data: bytes) -> bytes:
        if direction not in self._garbled or len(data) < LARGER:
            return data
        changed = bytearray(data)
        changed[len(data) * 2 // 3] ^= 0x55
        return bytes(changed)

    async def listen(self, target_port: int, target: str, source: str) -> int:
        """The port at which ``target`` can be reached; ``source`` is ``-`` when connections say who they are."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, target_port, target, source)

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=PIECE_BYTES)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target_port: int, target: str, source: str
    ) -> None:
        first = b""
        try:
            if source == "-":
                first, source = await _who(reader)
            await self.passable(f"{source}>{target}")
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port, limit=PIECE_BYTES)
            except OSError:
                await self.passable(f"{target}>{source}")
                return
            far_writer.write(first)
            open_now = self._connections.setdefault(f"{source}>{target}", set())
            open_now |= {writer, far_writer}
            try:
                await asyncio.gather(
                    self._pump(reader, far_writer, f"{source}>{target}"),
                    self._pump(far_reader, writer, f"{target}>{source}"),
                )
            finally:
                open_now -= {writer, far_writer}
                far_writer.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        try:
            while data := await reader.read(PIECE_BYTES):
                await self.passable(direction)
                if writer.is_closing():
                    return
                writer.write(self.piece(direction, data))
                await writer.drain()
        except OSError:
            pass
        # That the other side has gone is also heard of only over an open link.
        await self.passable(direction)
        writer.close()


async def _who(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """The bytes read so far, and who sends them: length, API key, version, correlation id, client id."""
    head = await reader.readexactly(_FIRST_BYTES - 2)
    client_id = await reader.readexactly(max(0, int.from_bytes(head[12:14], "big", signed=True)))
    found = _BROKER.match(client_id)
    return head + client_id, found[1].decode() if found else "client"


async def obey(network: Network, line: str) -> str:
    word, *arguments = line.split()
    if word == "listen":
        return str(await network.listen(int(arguments[0]), arguments[1], arguments[2]))
    orders: dict[str, Callable[[str], None]] = {
        "cut": network.cut,
        "heal": network.heal,
        "garble": network.garble,
        "drop": network.drop,
    }
    for direction in arguments:
        orders[word](direction)
    return "done"


async def main() -> None:
    network, loop = Network(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(await obey(network, line), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
