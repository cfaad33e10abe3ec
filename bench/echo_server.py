"""A reference: a uvloop server that reads length-prefixed frames and answers each with a frame of a given size.

It does what any server in Python must: receive, find the frame, write an answer. ``python -m bench.echo_server 60``
prints its port; 60 is the size of an answer, length included.
"""

import asyncio
import socket
import sys
from typing import cast

import uvloop

from skep.wire.primitives import INT32


class Echo(asyncio.Protocol):
    def __init__(self, answer_size: int) -> None:
        self._answer = INT32.pack(answer_size - 4) + bytes(answer_size - 4)
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position, size = 0, len(data)
        while size - position >= 4:
            end = position + 4 + INT32.unpack_from(data, position)[0]
            if end > size:
                break
            self._transport.write(self._answer)
            position = end
        self._rest = data[position:]


async def serve(answer_size: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(answer_size), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
