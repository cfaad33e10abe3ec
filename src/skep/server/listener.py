"""The listening socket and what its connections share: limits, the scratch buffer, the list of who is there."""

import asyncio
import logging
import os
import socket
from concurrent.futures import Executor
from typing import Protocol

from skep.base.clock import Clock
from skep.base.errors import StartupError
from skep.base.loop.slicer import Slicer, Work
from skep.base.loop.supervisor import Supervisor
from skep.broker.request import Outcome, Request
from skep.server.connection import SLOWEST_BYTES_PER_S, Connection
from skep.wire.frame_reader import SCRATCH_SIZE, LargeBuffers, ReceiveBudget

logger = logging.getLogger(__name__)

BACKLOG = 1024
REAP_INTERVAL_S = 1.0
SAY_FULL_AT_MOST_EVERY_S = 10.0
REPORT_SLOW_AT_MOST_EVERY_S = 1.0
STALLED_S = 3.0
"""How long a client may make no progress with a large request, or with a response, while others wait for the room."""


class Dispatch(Protocol):
    """What a listener needs of the broker behind it."""

    def decode(self, frame: memoryview, client_host: str) -> Request: ...

    def handle(self, request: Request) -> Outcome: ...


class Listener:
    """Accepts connections and owns the set of open ones; closes those that are idle too long or too many."""

    def __init__(
        self,
        dispatch: Dispatch,
        clock: Clock,
        slicer: Slicer,
        executor: Executor,
        *,
        max_request_bytes: int,
        queued_max_request_bytes: int,
        queued_max_response_bytes: int,
        max_inflight_requests: int,
    ) -> None:
        self.decode = dispatch.decode
        self.handle = dispatch.handle
        self.clock = clock
        self._slicer = slicer
        self.executor = executor
        self.max_request_bytes = max_request_bytes
        self.max_inflight_requests = max_inflight_requests
        self.max_connections = 1 << 30
        self.max_descriptors = 1 << 30
        """Connections that leave the process enough descriptors for the files of logs."""
        self.max_idle_ms = -1
        self.queued_max_response_bytes = queued_max_response_bytes
        self.slow_request_s = float("inf")
        self.receive_budget = ReceiveBudget(queued_max_request_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.large_buffers = LargeBuffers()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._supervisor = Supervisor()
        self._said_full = -SAY_FULL_AT_MOST_EVERY_S
        self._said_slow = -REPORT_SLOW_AT_MOST_EVERY_S

    async def bind(self, host: str, port: int) -> int:
        """Takes the port and returns it, which matters when 0 was asked for. StartupError when it cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host or None, port, backlog=BACKLOG, start_serving=False
            )
        except UnicodeError as error:
            # Such as "a..b": Python refuses to ask a resolver about it.
            raise StartupError(f"cannot listen on {host}:{port}: not the name of a host") from error
        except OSError as error:
            # The number of a gaierror is none of errno's; the sentence that comes with it is the resolver's.
            is_unresolved = isinstance(error, socket.gaierror)
            reason = os.strerror(error.errno) if error.errno and not is_unresolved else error.strerror or str(error)
            raise StartupError(f"cannot listen on {host}:{port}: {reason.lower()}") from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def serve(self) -> None:
        assert self._server is not None
        await self._server.start_serving()
        self._supervisor.spawn("idle connections", self._reap_now_and_then())

    def admit(self, connection: Connection) -> bool:
        open_count = len(self._connections)
        if open_count >= self.max_connections or open_count >= self.max_descriptors:
            self._say_full(connection)
            return False
        self._connections.add(connection)
        return True

    def _say_full(self, connection: Connection) -> None:
        now = self.clock.monotonic()
        if now - self._said_full < SAY_FULL_AT_MOST_EVERY_S:
            return
        self._said_full = now
        if self.max_connections <= self.max_descriptors:
            logger.warning("refused %s: max.connections=%d are open", connection.peer, self.max_connections)
        else:
            logger.warning(
                "refused %s: %d connections are open; what else the process may open (ulimit -n) is for logs",
                connection.peer,
                self.max_descriptors,
            )

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    async def _reap_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(REAP_INTERVAL_S)
            await self._slicer.finish(self.reap(self.clock.monotonic()))

    def reap(self, now: float) -> Work[None]:
        """Hangs up on connections that are idle too long, or that keep room from others without making progress."""
        untaken: list[Connection] = []
        for connection in list(self._connections):
            if self.max_idle_ms >= 0 and connection.idle_since(now) < now - self.max_idle_ms / 1000:
                connection.hang_up(f"idle for {self.max_idle_ms} ms (connections.max.idle.ms)")
            elif connection.receives_slowly_since(now) < now - STALLED_S and self.receive_budget.is_contended:
                connection.hang_up(
                    f"less than {SLOWEST_BYTES_PER_S} bytes/s of a large request for {STALLED_S:.0f} s "
                    "while others wait (queued.max.request.bytes)"
                )
            elif connection.untaken_bytes():
                untaken.append(connection)
            yield
        self._reap_untaken(untaken, now)

    def _reap_untaken(self, untaken: "list[Connection]", now: float) -> None:
        """Hangs up on those who take nothing of their responses, the largest first, until the rest fits."""
        held = sum(connection.untaken_bytes() for connection in untaken)
        for connection in sorted(untaken, key=lambda one: one.untaken_bytes(), reverse=True):
            takes_nothing = connection.takes_nothing_since(now) < now - STALLED_S
            if held > self.queued_max_response_bytes and takes_nothing:
                held -= connection.untaken_bytes()
                connection.hang_up(
                    f"took nothing of a response for {STALLED_S:.0f} s while there are too many "
                    "(skep.queued.max.response.bytes)"
                )

    def report_slow(self, request: Request, peer: str, size: int, took_s: float) -> None:
        """Logs a request that held the event loop; the client id is what the client calls itself."""
        now = self.clock.monotonic()
        if now - self._said_slow >= REPORT_SLOW_AT_MOST_EVERY_S:
            self._said_slow = now
            logger.warning(
                "%s v%d of %s (client id %r, %d bytes) held the event loop for %.0f ms",
                request.api.name,
                request.version,
                peer,
                request.client_id,
                size,
                took_s * 1000,
            )

    async def stop(self) -> None:
        """Stops accepting, then closes what is open; answers that are due are not waited for."""
        if self._server is not None:
            self._server.close()
        await self._supervisor.close()
        for connection in list(self._connections):
            connection.close()
        if self._server is not None:
            await self._server.wait_closed()
