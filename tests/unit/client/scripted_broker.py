"""A broker that a test plays by hand: it sees each request and says what is answered, and when."""

import asyncio
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from skep.wire.apis import API_VERSIONS, METADATA, Api
from skep.wire.codec import encode_response

PATIENCE_S = 30


class Asked(NamedTuple):
    """One request: who asks, and what."""

    writer: asyncio.StreamWriter
    api_key: int
    version: int
    correlation_id: int
    frame: bytes

    def answer(self, body: Mapping[str, Any]) -> None:
        self.answer_raw(encode_response(self.api_key, self.version, self.correlation_id, body))

    def answer_raw(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)


class ScriptedBroker:
    """Listens while it is entered. ApiVersions it answers by itself with ``apis``, unless there are none."""

    def __init__(self, apis: tuple[Api, ...] = (API_VERSIONS, METADATA)) -> None:
        self._apis = apis
        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: list[asyncio.Task[None] | None] = []
        self.id = 1
        self.host = "127.0.0.1"

    @property
    def connections(self) -> int:
        """How many there have been."""
        return len(self._writers)

    async def next(self) -> Asked:
        return await asyncio.wait_for(self._asked.get(), PATIENCE_S)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self.hang_up()
        await asyncio.gather(*(task for task in self._serving if task is not None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._serving.append(asyncio.current_task())
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(length)
                asked = Asked(writer, *struct.unpack_from(">hhi", frame), frame)
                if asked.api_key == API_VERSIONS.key and self._apis:
                    rows = [{"api_key": a.key, "min_version": a.oldest, "max_version": a.newest} for a in self._apis]
                    asked.answer({"api_keys": rows})
                else:
                    self._asked.put_nowait(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
