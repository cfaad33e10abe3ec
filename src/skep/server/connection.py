"""One client connection: frames in, responses out in the order of their requests, with back-pressure both ways.

Order. Kafka sends the responses of a connection in the order of its requests, and clients rely on it. So a request that
waits (a fetch for data, a topic that is created) holds back the requests behind it. Produce requests are the exception:
they overlap. They are appended in the order of arrival and only their acknowledgements wait, in the same order.
Otherwise a pipelining producer would pay for one sync per request. Writes of share states overlap too: a broker sends
one for each group.

Turns. Requests that arrive together are handled one after the other, for ``TURN_S`` at most. The rest waits for the
next turn of the event loop, so that other connections are served in between. A request that takes longer by itself
works in slices (``base/loop/slicer.py``).

Back-pressure. A client that does not read its responses fills the transport's buffer. Then no further request is taken
and the socket is not read. File regions stay in their files until the client takes them (``sender.py``), so a slow
reader of a response of 50 MiB costs no memory.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol, cast

from skep.base.clock import Clock
from skep.base.config.security_config import SecurityConfig
from skep.base.errors import DecodeError, StorageError
from skep.base.loop.log_limit import LogLimit
from skep.broker.refused_batches import RefusedBatches
from skep.broker.request import AnyRequest, CloseConnection, Parts
from skep.security.access import FULL_ACCESS, Access
from skep.security.principal import ANONYMOUS, Principal
from skep.security.quotas.client_quotas import ClientQuotas
from skep.security.sasl.mechanisms import Mechanisms
from skep.security.sasl.sasl_session import SaslSession
from skep.server.sender import Sender
from skep.wire.apis import API_VERSIONS, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE, SERVED, WRITE_SHARE_GROUP_STATE
from skep.wire.frame_reader import FrameReader, LargeBuffers, ReceiveBudget

logger = logging.getLogger(__name__)

BEFORE_AUTHENTICATION = frozenset({API_VERSIONS.key, SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key})
REQUESTS_OF_A_STRANGER = 20
"""The most requests for one authentication. Clients need five."""
TURN_S = 0.005
WRITE_BUFFER_BYTES = 1024 * 1024
TIME_TO_READ_S = 0.1
"""How long a connection stays open behind a response that ends it. kafka-python, if it finds the end of the stream
together with the response, does not read the response, and reports a lost connection and no wrong password."""
LAST_RESPONSES_S = 5.0
SLOWEST_BYTES_PER_S = 1024 * 1024
"""A large request that arrives more slowly than this makes no progress."""


class ConnectionOwner(Protocol):
    """The listener as its connections see it: limits, shared buffers, and the broker behind it."""

    clock: Clock
    executor: Executor
    max_request_bytes: int
    max_inflight_requests: int
    slow_request_s: float
    scratch: memoryview
    receive_budget: ReceiveBudget
    strangers_budget: ReceiveBudget
    """For clients that have not authenticated: they must not use up the room of those that have."""
    large_buffers: LargeBuffers
    log_limit: LogLimit

    def awaits_authentication(self, connection: "Connection") -> None:
        """From now on the connection has a limited time to authenticate."""
        ...

    def authenticated(self, connection: "Connection", principal: Principal) -> None:
        """Raises CloseConnection if the principal has too many connections."""
        ...

    def access(self, principal: Principal, host: str, listener: str) -> Access:
        """Returns what a client may do."""
        ...

    def decode(self, frame: memoryview, client_host: str) -> AnyRequest:
        """Raises DecodeError."""
        ...

    def handle(self, request: AnyRequest) -> Parts | Awaitable[Parts]:
        """Raises CloseConnection."""
        ...

    def admit(self, connection: "Connection") -> bool:
        """Returns False when there are too many connections."""
        ...

    def forget(self, connection: "Connection") -> None: ...

    def report_slow(self, request: AnyRequest, peer: str, took_s: float) -> None:
        """Logs a request that held the event loop for longer than ``slow_request_s``."""
        ...


class Entrance(Protocol):
    """The listener through which a client came, as its connection sees it."""

    name: str
    is_local: bool
    security: SecurityConfig
    mechanisms: Mechanisms | None


class FinishedHandshake(Protocol):
    """A TLS handshake whose client was admitted when it began."""

    def ended(self, connection: "Connection") -> None: ...

    def principal(self, ssl_object: ssl.SSLObject) -> Principal:
        """Raises CloseConnection."""
        ...


class _PendingResponse:
    """The place of one request in the order of responses. ``parts`` is None until the response is there."""

    __slots__ = ("parts",)

    def __init__(self, parts: Parts | None = None) -> None:
        self.parts = parts


class _Progress:
    """Tells whether a number that is sampled now and then grows by ``per_s`` a second."""

    __slots__ = ("_per_s", "_sampled", "_slow_since", "_value")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._value: int | None = None
        self._sampled = self._slow_since = 0.0

    def slow_since(self, now: float, value: int | None) -> float:
        """Returns the sample from which on the growth was too slow. None as ``value``: nothing should grow."""
        before, self._value = self._value, value
        elapsed, self._sampled = now - self._sampled, now
        if before is None or value is None or value - before >= self._per_s * elapsed:
            self._slow_since = now
        return self._slow_since


class Connection(asyncio.BufferedProtocol):
    """Owns its unfinished frame, the pending responses, and the tasks that wait for them.

    Between calls: ``_pending`` has one entry per request without a sent response, in order, and the first of them has
    no parts; ``_deferred`` is a request that waits until ``_pending`` is empty; ``_awaits_turn`` is set while frames
    are left for the next turn. ``_exclusive`` is set while the pending request holds back all others. ``_unmuting`` is
    set while the connection is muted, because its client is over a quota.

    While no request may be taken, reading is paused only when something arrives, which is kept. So for a client that
    waits for each response before it sends the next request, reading is never paused and resumed.
    """

    def __init__(
        self, owner: ConnectionOwner, entrance: Entrance, handshake: "FinishedHandshake | None" = None
    ) -> None:
        """``handshake`` is that of TLS, after which the connection is made."""
        self._owner = owner
        self._entrance = entrance
        self._handshake = handshake
        self.listener_name, self.is_local = entrance.name, entrance.is_local
        self.must_authenticate = entrance.mechanisms is not None
        self._frames = FrameReader(owner.scratch, owner.max_request_bytes, owner.receive_budget, owner.large_buffers)
        self._decode: Callable[[memoryview, str], AnyRequest] = _not_greeted
        self.sasl: SaslSession | None = None
        self.principal: Principal | None = None
        """Who the client has proven to be; None if it did not have to, or has not yet."""
        self._requests_left = REQUESTS_OF_A_STRANGER
        self._ends_with: str | None = None
        self._session_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._pending: deque[_PendingResponse] = deque()
        self._exclusive = False
        self._awaits_turn = False
        self._deferred: AnyRequest | None = None
        self._sends_soon = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._half_closed = False
        self._reading = True
        self._has_room = True
        self._region_bytes_seen = 0
        self._receiving = _Progress(SLOWEST_BYTES_PER_S)
        self._taking = _Progress(1)
        self._held_bytes = 0
        self.host = self.peer = "?"
        self.when_lost: Callable[[Any], None] | None = None
        self.is_lost = False
        self.access: Access = FULL_ACCESS
        self.refused_batches: RefusedBatches | None = None
        self.quotas: ClientQuotas | None = None
        self._unmuting: asyncio.TimerHandle | None = None
        self.last_active = owner.clock.monotonic()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        handshake, self._handshake = self._handshake, None
        self._begin(cast(asyncio.Transport, transport), is_encrypted=handshake is not None)
        if handshake is None:
            if self._owner.admit(self):
                self._greet(ANONYMOUS)
            else:
                self._closed = True
                self._transport.abort()
            return
        handshake.ended(self)
        try:
            self._greet(handshake.principal(transport.get_extra_info("ssl_object")))
        except CloseConnection as error:
            self.hang_up(str(error))

    def _begin(self, transport: asyncio.Transport, *, is_encrypted: bool = False) -> None:
        self._transport = transport
        self._sender = Sender(
            transport, self._owner.executor, self._resume, self._storage_failed, is_encrypted=is_encrypted
        )
        if address := transport.get_extra_info("peername"):
            self.host, self.peer = address[0], f"{address[0]}:{address[1]}"
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _greet(self, principal: Principal) -> None:
        """Decides what the client may send: everything, or only what it needs to authenticate."""
        if (mechanisms := self._entrance.mechanisms) is not None:
            security = self._entrance.security
            self.sasl = SaslSession(mechanisms, self, security, self._owner.clock)
            self._decode = self._decode_of_stranger
            self._frames = FrameReader(
                self._owner.scratch,
                security.sasl_server_max_receive_size,
                self._owner.strangers_budget,
                self._owner.large_buffers,
                "sasl.server.max.receive.size",
            )
            self._owner.awaits_authentication(self)
            return
        if principal is not ANONYMOUS:
            self._enter(principal)
        else:
            self.access = self._owner.access(principal, self.host, self.listener_name)
        self._decode = self._owner.decode

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._end_mute()
        if self._session_timer is not None:
            self._session_timer.cancel()
        if self._ending is not None:
            # It would hold the connection, with TLS 60 kB, until its time is up.
            self._ending.cancel()
        self._frames.close()
        self._release_long()
        self._sender.close()
        if self._tasks:
            # Not at once: a task that never began would leave behind coroutines that were never awaited.
            asyncio.get_running_loop().call_soon(self._cancel_tasks)
        self._owner.forget(self)
        self._tell_lost()

    def _tell_lost(self) -> None:
        self.is_lost = True
        if self.when_lost is not None:
            self.when_lost(self)

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._owner.clock.monotonic()
        self._frames.received(nbytes)
        self._take_frames()

    def eof_received(self) -> bool:
        """The client sends nothing more but may still read: pending responses are sent before the connection closes.

        It can acknowledge nothing more, so it must get no more records to acknowledge: a client that was killed while
        its fetch waits looks the same.
        """
        self._half_closed = True
        self._tell_lost()
        # TLS has no half-closed connections.
        return not self._sender.is_encrypted and not self._is_quiet()

    def pause_writing(self) -> None:
        self._sender.pause()
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._sender.resume()

    # Authentication. Before it, and after the end of its session, only three APIs are decoded.

    def _decode_of_stranger(self, frame: memoryview, client_host: str) -> AnyRequest:
        key = int.from_bytes(frame[:2], "big")
        if key not in BEFORE_AUTHENTICATION:
            name = SERVED[key].name if key in SERVED else f"API {key}"
            why = "the client has not authenticated" if self.principal is None else "its session has ended (KIP-368)"
            raise DecodeError(
                f"{name} is refused: {why}; listener {self.listener_name} needs security.protocol="
                f"{'SASL_SSL' if self._sender.is_encrypted else 'SASL_PLAINTEXT'}"
            )
        self._requests_left -= 1
        if self._requests_left < 0:
            raise DecodeError(f"{REQUESTS_OF_A_STRANGER} requests, and it has not authenticated")
        return self._owner.decode(frame, client_host)

    def authenticated(self, principal: Principal, lifetime_ms: int) -> None:
        """The client is ``principal``, for ``lifetime_ms`` or, if that is 0, for as long as it is connected.

        Raises CloseConnection if the principal has too many connections.
        """
        if self._closed:
            # Nobody would count the connection out again.
            raise CloseConnection("the client has gone")
        if self.principal is None:
            self._enter(principal)
            self._frames.allow(self._owner.max_request_bytes, self._owner.receive_budget)
        self._decode = self._owner.decode
        if self._session_timer is not None:
            self._session_timer.cancel()
            self._session_timer = None
        if lifetime_ms:
            self._session_timer = asyncio.get_running_loop().call_later(lifetime_ms / 1000, self._session_ended)

    def _session_ended(self) -> None:
        self._requests_left = REQUESTS_OF_A_STRANGER
        self._decode = self._decode_of_stranger

    def _enter(self, principal: Principal) -> None:
        self._owner.authenticated(self, principal)
        self.principal = principal
        self.access = self._owner.access(principal, self.host, self.listener_name)

    def end_after_response(self, reason: str) -> None:
        """Closes the connection when the response to the request that is being handled has been sent."""
        self._ends_with = reason

    # Called by the socket server now and then.

    def idle_since(self, now: float) -> float:
        """Returns when bytes were received last, or the client took bytes of a long response."""
        if self._sender.region_bytes_sent != self._region_bytes_seen:
            self._region_bytes_seen = self._sender.region_bytes_sent
            self.last_active = now
        return self.last_active

    def receives_slowly_since(self, now: float) -> float:
        """Returns since when an unfinished large request hardly grows; ``now`` if there is no such request."""
        return self._receiving.slow_since(now, self._frames.large_bytes if self._unmuting is None else None)

    def untaken_bytes(self) -> int:
        """Returns how much memory is held by responses that the client has not read."""
        return self._sender.untaken_bytes()

    def takes_nothing_since(self, now: float) -> float:
        """Returns since when the client reads nothing of its responses."""
        return self._taking.slow_since(now, -self.untaken_bytes() or None)

    # Requests in.

    def _take_frames(self) -> None:
        """Handles the complete frames that may be handled, keeps the rest, and pauses or resumes reading."""
        frames, owner = self._frames, self._owner
        monotonic = owner.clock.monotonic
        before = monotonic()
        until = before + TURN_S
        try:
            more = self._takes_requests()
            while more and (frame := frames.next_frame()) is not None:
                request = self._decode(frame, self.host)
                if request.undecoded is not None:
                    self._held_bytes = len(frame)
                    owner.receive_budget.hold(self._held_bytes)
                more = self._take(request)
                now = monotonic()
                if now - before > owner.slow_request_s:
                    owner.report_slow(request, self.peer, now - before)
                before = now
                if now >= until and more:
                    self._await_turn()
                    break
            if not self._closed:
                self._sender.flush()
                if self._unmuting is None:
                    self._has_room = frames.keep_rest(self._resume)
                else:  # room for a large request is for those whose turn it is
                    self._has_room = frames.keep_rest(self._resume, begins_large=False)
        except (DecodeError, CloseConnection) as error:
            self.hang_up(str(error))
            return
        self._adjust_reading()

    def _await_turn(self) -> None:
        self._awaits_turn = True
        asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._resume()

    def _takes_requests(self) -> bool:
        return not (
            self._closed
            or self._unmuting is not None
            or self._exclusive
            or self._awaits_turn
            or self._deferred is not None
            or len(self._pending) >= self._owner.max_inflight_requests
            or not self._sender.is_idle
        )

    def _take(self, request: AnyRequest) -> bool:
        """Handles or defers one request. Returns whether another may be taken."""
        api = request.api
        overlaps = (api is PRODUCE or api is WRITE_SHARE_GROUP_STATE) and not request.is_exclusive
        if self._pending and not overlaps:
            self._deferred = request
            return False
        request.connection = self
        request.access = self.access
        try:
            response = self._owner.handle(request)
        except CloseConnection:
            raise
        except Exception as error:
            raise CloseConnection(_no_response(error)) from error
        if type(response) is not tuple and isinstance(response, Awaitable):
            # The handler may have made the request exclusive.
            self._exclusive = not overlaps or request.is_exclusive
            pending = _PendingResponse()
            self._pending.append(pending)
            self._spawn(self._await_response(pending, response))
        elif self._pending:
            self._pending.append(_PendingResponse(response))
        elif response:
            return self._sender.send(response) and self._unmuting is None
        return self._takes_requests()

    def _adjust_reading(self) -> None:
        wanted = self._has_room and (
            self._takes_requests() or (self._sender.is_idle and self._deferred is None and not self._frames.has_unread)
        )
        if self._closed or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _resume(self) -> None:
        """Takes the deferred request, then the frames received meanwhile, as far as they may be taken now."""
        if self._closed:
            return
        if self._deferred is not None and not self._pending and self._sender.is_idle and self._unmuting is None:
            request, self._deferred = self._deferred, None
            try:
                self._take(request)
            except CloseConnection as error:
                self.hang_up(str(error))
                return
        self._frames.replay_rest()
        self._take_frames()
        if self._half_closed and self._is_quiet():
            self._transport.close()

    def _is_quiet(self) -> bool:
        if self._unmuting is not None and self._frames.has_unread:
            return False
        return not self._pending and self._deferred is None and not self._awaits_turn and self._sender.is_idle

    # Quotas.

    def mute(self, duration_s: float) -> None:
        """Takes no further request for so long: neither those that were received already, nor new ones.

        As long as nothing arrives the socket is still read, so a client that leaves is noticed.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + duration_s
        if self._closed or (self._unmuting is not None and self._unmuting.when() >= until):
            return
        self._end_mute()
        self._unmuting = loop.call_at(until, self.unmute)

    def unmute(self) -> None:
        """Takes requests again, if the connection was muted."""
        if self._unmuting is not None:
            self._end_mute()
            self._resume()

    def _end_mute(self) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None

    # Responses out.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_response(self, pending: _PendingResponse, response: Awaitable[Parts]) -> None:
        try:
            pending.parts = await response
        except CloseConnection as error:
            self.hang_up(str(error))
            return
        except Exception as error:
            # The error response itself failed, e.g. it is longer than a response may be. Without a hang-up the client
            # would wait for it forever.
            self.hang_up(_no_response(error))
            return
        if len(self._pending) == 1:
            self._send_pending()
        elif self._pending and self._pending[0].parts is not None and not self._sends_soon:
            # A sync or a follower's fetch commits many requests at once, and each of them has a task that runs in this
            # turn of the loop. Their responses leave in one write after the last of these tasks.
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send_pending)

    def _send_pending(self) -> None:
        """Sends the responses at the front of the queue that are there."""
        self._sends_soon = False
        if self._closed:
            return
        while self._pending and (parts := self._pending[0].parts) is not None:
            self._pending.popleft()
            if parts:
                self._sender.send(parts)
        if not self._pending:
            self._exclusive = False
            if self._deferred is None:  # otherwise the deferred request may be the long one
                self._release_long()
        if self._ends_with is not None and not self._pending:
            self.hang_up(self._ends_with, after_s=TIME_TO_READ_S)
            return
        self._resume()

    def _release_long(self) -> None:
        """Stops counting the frame of a long request, which is decoded from the frame while it is handled."""
        if self._held_bytes:
            size, self._held_bytes = self._held_bytes, 0
            self._owner.receive_budget.release(size, self)

    def _storage_failed(self, error: StorageError) -> None:
        self.hang_up(str(error))

    def hang_up(self, reason: str, after_s: float = 0.0) -> None:
        """Closes and logs why. Responses that were sent before have ``LAST_RESPONSES_S`` to reach the client.

        Lines about clients that have not authenticated are limited, except on this machine without SASL.
        """
        if self._closed:
            return
        is_known = self.principal is not None or (self.is_local and self.sasl is None)
        warn = logger.warning if is_known else partial(self._owner.log_limit.warning, logger)
        warn("closed the connection of %s: %s", self.peer, reason)
        self._close(after_s)

    def _close(self, after_s: float = 0.0) -> None:
        self._sender.flush()
        self._closed = True
        if after_s:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(after_s, self._transport.close)
        else:
            self._transport.close()
        self._ending = asyncio.get_running_loop().call_later(LAST_RESPONSES_S, self._transport.abort)

    def close(self) -> None:
        self._closed = True
        self._transport.abort()


def _not_greeted(frame: memoryview, client_host: str) -> AnyRequest:
    """The decoder until it is known what the client may send."""
    raise DecodeError("a request before the connection is ready")


def _no_response(error: Exception) -> str:
    return f"no response could be made: {type(error).__name__}: {error}"
