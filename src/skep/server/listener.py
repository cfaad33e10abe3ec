"""The listening socket, the set of open connections, and what they share: limits and buffers."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Protocol

from skep.base.clock import Clock
from skep.base.errors import StartupError
from skep.base.loop.slicer import Slicer, Work
from skep.base.loop.supervisor import Supervisor
from skep.broker.request import AnyRequest, Parts
from skep.server.connection import SLOWEST_BYTES_PER_S, Connection
from skep.wire.frame_reader import SCRATCH_SIZE, LargeBuffers, ReceiveBudget

logger = logging.getLogger(__name__)

BACKLOG = 1024
REAP_INTERVAL_S = 1.0
REPORT_FULL_AT_MOST_EVERY_S = 10.0
REPORT_SLOW_AT_MOST_EVERY_S = 1.0
STALLED_S = 3.0
"""How long a client may make no progress with a large request or a response while others wait for the room."""


class Dispatch(Protocol):
    """The broker as a listener sees it."""

    def decode(self, frame: memoryview, client_host: str) -> AnyRequest: ...

    def handle(self, request: AnyRequest) -> Parts | Awaitable[Parts]: ...


class Listener:
    """Accepts connections up to the limits and owns the open ones. Closes those that are idle or stalled."""

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
        """Limits connections, so that enough descriptors of the process are left for log files."""
        self.max_idle_ms = -1
        self.queued_max_response_bytes = queued_max_response_bytes
        self.slow_request_s = float("inf")
        self.connection_wait_s: Callable[[str], float] = lambda host: 0.0
        """Returns how long a new connection from this host has to wait before its first request is taken."""
        self.receive_budget = ReceiveBudget(queued_max_request_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.large_buffers = LargeBuffers()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._supervisor = Supervisor()
        self._reported_full = -REPORT_FULL_AT_MOST_EVERY_S
        self._reported_slow = -REPORT_SLOW_AT_MOST_EVERY_S

    async def bind(self, host: str, port: int) -> int:
        """Binds the port and returns its number, also for port 0. Raises StartupError when it cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host or None, port, backlog=BACKLOG, start_serving=False
            )
        except UnicodeError as error:
            # E.g. "a..b": Python does not pass it to the resolver.
            raise StartupError(f"cannot listen on {host}:{port}: not a valid host name") from error
        except OSError as error:
            # The number of a gaierror is not an errno; its text is the resolver's.
            is_unresolved = isinstance(error, socket.gaierror)
            reason = os.strerror(error.errno) if error.errno and not is_unresolved else error.strerror or str(error)
            advice = "; choose another with --listen" if error.errno == errno.EADDRINUSE else ""
            raise StartupError(f"cannot listen on {host}:{port}: {reason.lower()}{advice}") from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def serve(self) -> None:
        assert self._server is not None
        await self._server.start_serving()
        self._supervisor.spawn("idle connections", self._reap_now_and_then())

    def admit(self, connection: Connection) -> bool:
        open_count = len(self._connections)
        if open_count >= self.max_connections or open_count >= self.max_descriptors:
            self._report_full(connection)
            return False
        self._connections.add(connection)
        if wait_s := self.connection_wait_s(connection.host):
            connection.mute(wait_s)
        return True

    def _report_full(self, connection: Connection) -> None:
        now = self.clock.monotonic()
        if now - self._reported_full < REPORT_FULL_AT_MOST_EVERY_S:
            return
        self._reported_full = now
        if self.max_connections <= self.max_descriptors:
            logger.warning(
                "refused %s: %d connections are open (max.connections)", connection.peer, self.max_connections
            )
        else:
            logger.warning(
                "refused %s: %d connections are open; the other file descriptors (ulimit -n) are for logs",
                connection.peer,
                self.max_descriptors,
            )

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def unmute_all(self) -> None:
        """Takes requests of all clients again: their quotas have changed."""
        for connection in list(self._connections):
            connection.unmute()

    async def _reap_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(REAP_INTERVAL_S)
            await self._slicer.finish(self.reap(self.clock.monotonic()))

    def reap(self, now: float) -> Work[None]:
        """Closes connections that are idle for too long, or that hold room others wait for and make no progress."""
        untaken: list[Connection] = []
        for connection in list(self._connections):
            if self.max_idle_ms >= 0 and connection.idle_since(now) < now - self.max_idle_ms / 1000:
                connection.hang_up(f"idle for {self.max_idle_ms} ms (connections.max.idle.ms)")
            elif connection.receives_slowly_since(now) < now - STALLED_S and self.receive_budget.is_contended:
                connection.hang_up(
                    f"sent less than {SLOWEST_BYTES_PER_S} bytes/s of a large request for {STALLED_S:.0f} s "
                    "while other requests wait for room (queued.max.request.bytes)"
                )
            elif connection.untaken_bytes():
                untaken.append(connection)
            yield
        self._reap_untaken(untaken, now)

    def _reap_untaken(self, untaken: "list[Connection]", now: float) -> None:
        """Closes connections whose clients read nothing of their responses, the largest first, until the rest fits."""
        held = sum(connection.untaken_bytes() for connection in untaken)
        for connection in sorted(untaken, key=lambda one: one.untaken_bytes(), reverse=True):
            takes_nothing = connection.takes_nothing_since(now) < now - STALLED_S
            if held > self.queued_max_response_bytes and takes_nothing:
                held -= connection.untaken_bytes()
                connection.hang_up(
                    f"read nothing of a response for {STALLED_S:.0f} s while unread responses exceed "
                    f"{self.queued_max_response_bytes} bytes (skep.queued.max.response.bytes)"
                )

    def report_slow(self, request: AnyRequest, peer: str, took_s: float) -> None:
        """Logs a request that held the event loop, at most one every ``REPORT_SLOW_AT_MOST_EVERY_S``."""
        now = self.clock.monotonic()
        if now - self._reported_slow >= REPORT_SLOW_AT_MOST_EVERY_S:
            self._reported_slow = now
            logger.warning(
                "%s v%d of %s (client id %r, %d bytes) held the event loop for %.0f ms",
                request.api.name,
                request.version,
                peer,
                request.client_id,
                request.size,
                took_s * 1000,
            )

    async def stop(self) -> None:
        """Stops accepting, then closes the open connections without waiting for pending responses."""
        if self._server is not None:
            self._server.close()
        await self._supervisor.close()
        for connection in list(self._connections):
            connection.close()
        if self._server is not None:
            await self._server.wait_closed()
