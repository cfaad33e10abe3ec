"""The listeners of a broker, the set of their open connections, and what they share: limits and buffers."""

import asyncio
import logging
import operator
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Generic, Protocol, TypeVar

from skep.base.clock import Clock
from skep.base.loop.log_limit import LogLimit
from skep.base.loop.slicer import Slicer, Work
from skep.base.loop.supervisor import Supervisor
from skep.broker.request import AnyRequest, CloseConnection, Parts
from skep.security.access import Access
from skep.security.principal import Principal
from skep.server.acceptor import Acceptor
from skep.server.connection import SLOWEST_BYTES_PER_S, Connection
from skep.server.tls_handshake import TlsHandshake
from skep.wire.frame_reader import SCRATCH_SIZE, LargeBuffers, ReceiveBudget

logger = logging.getLogger(__name__)

Newcomer = Connection | TlsHandshake
K = TypeVar("K")

PATIENCE_WITH_NEWCOMERS_S = 1.0
REAP_INTERVAL_S = 1.0
REPORT_FULL_AT_MOST_EVERY_S = 10.0
REPORT_SLOW_AT_MOST_EVERY_S = 1.0
STRANGERS_BYTES = 16 << 20
"""Bytes of unfinished requests of clients that have not authenticated, over all connections. A login needs few."""
STALLED_S = 3.0
"""How long a client may make no progress with a large request or a response while others wait for the room."""


class Dispatch(Protocol):
    """The broker as the server sees it."""

    def decode(self, frame: memoryview, client_host: str) -> AnyRequest: ...

    def handle(self, request: AnyRequest) -> Parts | Awaitable[Parts]: ...


class Counts(Generic[K]):
    """Numbers of open connections by address or principal. Those without any take no room."""

    def __init__(self) -> None:
        self._counts: dict[K, int] = {}

    def enter(self, key: K, limit: int) -> bool:
        """Counts one more, or returns False if there are as many as may be."""
        count = self._counts.get(key, 0)
        if count >= limit:
            return False
        self._counts[key] = count + 1
        return True

    def leave(self, key: K) -> None:
        if self._counts[key] == 1:
            del self._counts[key]
        else:
            self._counts[key] -= 1


class SocketServer:
    """Accepts connections up to the limits and owns the open ones. Closes those that are idle or stalled.

    ``_open`` counts all: ``_connections``, and those of ``_newcomers`` that are still in their TLS handshake. A
    newcomer that is a connection has yet to authenticate.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        access: Callable[[Principal, str, str], Access],
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
        self.access = access
        self.clock = clock
        self._slicer = slicer
        self.executor = executor
        self.max_request_bytes = max_request_bytes
        self.max_inflight_requests = max_inflight_requests
        self.max_connections = 1 << 30
        self.max_descriptors = 1 << 30
        """Limits connections, so that enough descriptors of the process are left for log files."""
        self.max_unauthenticated = self.max_connections_per_host = self.max_connections_per_principal = 1 << 30
        self.max_connections_by_host: Mapping[str, int] = {}
        self.handshake_timeout_ms = 1 << 30
        self.max_idle_ms = -1
        self.queued_max_response_bytes = queued_max_response_bytes
        self.slow_request_s = float("inf")
        self.connection_wait_s: Callable[[str, Mapping[str, float]], float | None] = lambda host, rates: 0.0
        """Returns how long a new connection from this host has to wait before its first request is taken.

        None: it would be too long, and the connection is to be closed.
        """
        self.connection_rates: Mapping[str, Mapping[str, float]] = {}
        """The ``max.connection.creation.rate`` that apply to each listener: the broker's and its own."""
        self.receive_budget = ReceiveBudget(queued_max_request_bytes)
        self.strangers_budget = ReceiveBudget(STRANGERS_BYTES)
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.large_buffers = LargeBuffers()
        self._connections: set[Connection] = set()
        self._newcomers: dict[Newcomer, float] = {}
        self._open = 0
        self.acceptors: list[Acceptor] = []
        self.by_host: Counts[str] = Counts()
        self.by_principal: Counts[Principal] = Counts()
        self.log_limit = LogLimit(clock)
        self._supervisor = Supervisor()
        self._reported_full = -REPORT_FULL_AT_MOST_EVERY_S
        self._reported_slow = -REPORT_SLOW_AT_MOST_EVERY_S

    def add(self, acceptor: Acceptor) -> None:
        """Adds a listener whose port is bound."""
        self.acceptors.append(acceptor)

    async def serve(self) -> None:
        for acceptor in self.acceptors:
            await acceptor.serve()
        self._supervisor.spawn("idle connections", self._reap_now_and_then())

    def admit(self, connection: Connection) -> bool:
        wait_s = self._enter(connection, is_stranger=connection.must_authenticate)
        if wait_s is None:
            return False
        self._connections.add(connection)
        if wait_s:
            connection.mute(wait_s)
        if connection.must_authenticate:
            self._newcomers[connection] = self.clock.monotonic() + wait_s
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._newcomers.pop(connection, None)
            self._leave(connection)
            if (principal := connection.principal) is not None:
                self.by_principal.leave(principal)

    def admit_newcomer(self, newcomer: TlsHandshake) -> bool:
        wait_s = self._enter(newcomer, is_stranger=True)
        if wait_s is None:
            return False
        self._newcomers[newcomer] = self.clock.monotonic() + wait_s
        newcomer.wait_s = wait_s
        return True

    def forget_newcomer(self, newcomer: Newcomer) -> None:
        if self._newcomers.pop(newcomer, None) is not None:
            self._leave(newcomer)

    def handed_over(self, newcomer: Newcomer, connection: Connection) -> None:
        del self._newcomers[newcomer]
        self._connections.add(connection)

    def awaits_authentication(self, connection: Connection) -> None:
        # Without TLS its time is set already. It begins after the wait for its turn.
        self._newcomers.setdefault(connection, self.clock.monotonic())

    def authenticated(self, connection: Connection, principal: Principal) -> None:
        """Counts the connection for its principal. Raises CloseConnection if the principal has too many."""
        if not self.by_principal.enter(principal, self.max_connections_per_principal):
            raise CloseConnection(
                f"{principal} has {self.max_connections_per_principal} connections (skep.max.connections.per.principal)"
            )
        self._newcomers.pop(connection, None)

    def _enter(self, newcomer: Newcomer, *, is_stranger: bool) -> float | None:
        """Counts a new connection and returns how long it waits for its turn, or reports why not and returns None."""
        if self._open >= self.max_connections or self._open >= self.max_descriptors:
            self._report_full(newcomer)
            return None
        limit = self.max_connections_by_host.get(newcomer.host, self.max_connections_per_host)
        if not self.by_host.enter(newcomer.host, limit):
            self.report(newcomer.peer, f"{limit} connections of this address are open (max.connections.per.ip)")
            return None
        self._open += 1
        wait_s = self.connection_wait_s(newcomer.host, self.connection_rates.get(newcomer.listener_name, {}))
        if wait_s is None:
            self.report(
                newcomer.peer,
                "too many connect at once (max.connection.creation.rate, or connection_creation_rate of its address)",
            )
        # The last step: nobody is hung up on for a connection that is refused.
        elif is_stranger and not self._has_room_for_strangers():
            self.report(
                newcomer.peer,
                f"{self.max_unauthenticated} others have not authenticated yet (skep.max.unauthenticated.connections)",
            )
            wait_s = None
        if wait_s is None:
            self._leave(newcomer)
        return wait_s

    def _has_room_for_strangers(self) -> bool:
        return len(self._newcomers) < self.max_unauthenticated or self._make_room_among_newcomers()

    def _leave(self, newcomer: Newcomer) -> None:
        self._open -= 1
        self.by_host.leave(newcomer.host)

    def _make_room_among_newcomers(self) -> bool:
        """Hangs up on the one that has taken longest, if that is too long for an honest client on a busy broker.

        Otherwise a few hundred connections that send nothing would keep everybody out for the time of a handshake.
        """
        # Not the first: it may have waited for its turn, which is no fault of its own.
        oldest, since = min(self._newcomers.items(), key=operator.itemgetter(1))
        if self.clock.monotonic() - since < PATIENCE_WITH_NEWCOMERS_S:
            return False
        oldest.hang_up("it has not authenticated yet, and others wait (skep.max.unauthenticated.connections)")
        self._newcomers.pop(oldest, None)
        return True

    def report(self, peer: str, reason: str) -> None:
        self.log_limit.warning(logger, "refused %s: %s", peer, reason)

    def _report_full(self, connection: Newcomer) -> None:
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

    def hang_up_on(self, principal: Principal, reason: str) -> None:
        for connection in list(self._connections):
            if connection.principal == principal and connection.sasl is not None:
                connection.hang_up(reason)

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
        self._reap_newcomers(now)
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

    def _reap_newcomers(self, now: float) -> None:
        late = now - self.handshake_timeout_ms / 1000
        for newcomer, since in list(self._newcomers.items()):
            # A handshake has a timer of its own.
            if since < late and isinstance(newcomer, Connection):
                newcomer.hang_up("it did not authenticate in time (skep.handshake.timeout.ms)")
                self._newcomers.pop(newcomer, None)

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
        for acceptor in self.acceptors:
            acceptor.close()
        await self._supervisor.close()
        for connection in (*self._connections, *self._newcomers):
            connection.close()
        for acceptor in self.acceptors:
            await acceptor.wait_closed()
