"""One client connection: frames in, answers out in the order of their requests, with back-pressure both ways.

Order. Kafka answers the requests of a connection one after the other, and clients rely on it. So a request that has
to wait (a fetch for data, a topic to be created) holds back the ones behind it, with one exception: produce requests
overlap. Their appends happen in the order of arrival and only their acknowledgements wait, in the same order; without
this a pipelining producer would pay one sync per request.

Turns. Requests that come together are handled one after the other, for ``TURN_S`` at most; the rest waits for the next
turn of the event loop, when the other connections have had theirs. A request that takes longer by itself works in
slices (``base/loop/slicer.py``).

Back-pressure. A client that does not read its answers fills the transport's buffer; then no further request is taken
and nothing more is read from the socket. File regions stay in their files until the client takes them
(``sender.py``), so a slow reader of a 50 MiB answer costs no memory.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, cast

from skep.base.errors import DecodeError, StorageError
from skep.broker.request import CloseConnection, Parts, Request
from skep.server.sender import Sender
from skep.wire.apis import PRODUCE
from skep.wire.frame_reader import FrameReader

if TYPE_CHECKING:
    from skep.server.listener import Listener

logger = logging.getLogger(__name__)

TURN_S = 0.005
WRITE_BUFFER_BYTES = 1024 * 1024
LAST_ANSWERS_S = 5.0
SLOWEST_BYTES_PER_S = 1024 * 1024
"""What counts as progress with a large request."""


class _Due:
    """The place of one unanswered request in the order of answers."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: Parts | None = None


class _Progress:
    """Whether a number that is looked at now and then grows by ``per_s`` a second."""

    __slots__ = ("_looked", "_per_s", "_slow_since", "_value")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._value: int | None = None
        self._looked = self._slow_since = 0.0

    def slow_since(self, now: float, value: int | None) -> float:
        """When the growth became too slow, as far as was looked; None: there is nothing that should grow."""
        before, self._value = self._value, value
        elapsed, self._looked = now - self._looked, now
        if before is None or value is None or value - before >= self._per_s * elapsed:
            self._slow_since = now
        return self._slow_since


class Connection(asyncio.BufferedProtocol):
    """Owns its half-read frame, the answers that are due, and the tasks that work on them.

    Between calls: ``_due`` has one entry per unanswered request, in order, the first of them without parts;
    ``_deferred`` is a request that waits for all of them; ``_awaits_turn`` is set while frames are left for the next
    turn. While no request may be taken the socket is read until something has come, which is kept; so a client that
    asks for one thing at a time, and waits, costs no change of what the loop listens to.
    """

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._frames = FrameReader(
            listener.scratch, listener.max_request_bytes, listener.receive_budget, listener.large_buffers
        )
        self._due: deque[_Due] = deque()
        self._exclusive = False
        self._awaits_turn = False
        self._deferred: Request | None = None
        self._sends_soon = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._half_closed = False
        self._reading = True
        self._has_room = True
        self._region_bytes_seen = 0
        self._received_slowly = _Progress(SLOWEST_BYTES_PER_S)
        self._taken = _Progress(1)
        self._held_bytes = 0
        self.host = self.peer = "?"
        self.last_active = listener.clock.monotonic()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self._sender = Sender(transport, self._listener.executor, self._go_on, self._storage_failed)
        if address := transport.get_extra_info("peername"):
            self.host, self.peer = address[0], f"{address[0]}:{address[1]}"
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._listener.admit(self):
            self._closed = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._frames.close()
        self._release_long()
        self._sender.close()
        if self._tasks:
            # Not at once: a task that was never begun would leave coroutines behind that nobody awaits.
            asyncio.get_running_loop().call_soon(self._cancel_tasks)
        self._listener.forget(self)

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._listener.clock.monotonic()
        self._frames.received(nbytes)
        self._take_frames()

    def eof_received(self) -> bool:
        """The client sends nothing more but may still read: what is due goes out first, then we close."""
        self._half_closed = True
        return not self._is_quiet()

    def pause_writing(self) -> None:
        self._sender.pause()
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._sender.resume()

    # What the listener asks from time to time.

    def idle_since(self, now: float) -> float:
        """When something came in last, or was taken of a long answer."""
        if self._sender.region_bytes_sent != self._region_bytes_seen:
            self._region_bytes_seen = self._sender.region_bytes_sent
            self.last_active = now
        return self.last_active

    def receives_slowly_since(self, now: float) -> float:
        """Since when an unfinished large request takes room and hardly grows; ``now`` when there is no such request."""
        return self._received_slowly.slow_since(now, self._frames.large_bytes)

    def untaken_bytes(self) -> int:
        """How much memory the responses take that the client has not read yet."""
        return self._sender.untaken_bytes()

    def takes_nothing_since(self, now: float) -> float:
        """Since when the client reads nothing of its responses."""
        return self._taken.slow_since(now, -self.untaken_bytes() or None)

    # Requests in.

    def _take_frames(self) -> None:
        """Handles every whole frame that it may, keeps the rest, and stops or starts reading accordingly."""
        frames, listener = self._frames, self._listener
        monotonic = listener.clock.monotonic
        before = monotonic()
        until = before + TURN_S
        try:
            more = self._takes_requests()
            while more and (frame := frames.next_frame()) is not None:
                request = listener.decode(frame, self.host)
                request.size = len(frame)
                if request.unread is not None:
                    self._held_bytes = len(frame)
                    listener.receive_budget.hold(self._held_bytes)
                more = self._take(request)
                now = monotonic()
                if now - before > listener.slow_request_s:
                    listener.report_slow(request, self.peer, len(frame), now - before)
                before = now
                if now >= until and more:
                    self._await_turn()
                    break
            if not self._closed:
                self._sender.flush()
                self._has_room = frames.keep_rest(self._go_on)
        except (DecodeError, CloseConnection) as error:
            self.hang_up(str(error))
            return
        self._adjust_reading()

    def _await_turn(self) -> None:
        self._awaits_turn = True
        asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._go_on()

    def _takes_requests(self) -> bool:
        return not (
            self._closed
            or self._exclusive
            or self._awaits_turn
            or self._deferred is not None
            or len(self._due) >= self._listener.max_inflight_requests
            or not self._sender.is_idle
        )

    def _take(self, request: Request) -> bool:
        """Handles one request, or defers it; whether another may be taken."""
        overlaps = request.api is PRODUCE and not request.is_exclusive
        if self._due and not overlaps:
            self._deferred = request
            return False
        try:
            outcome = self._listener.handle(request)
        except CloseConnection:
            raise
        except Exception as error:
            raise CloseConnection(_no_response(error)) from error
        if type(outcome) is not tuple and isinstance(outcome, Awaitable):
            self._exclusive = not overlaps or request.is_exclusive  # which the handler may have found out
            due = _Due()
            self._due.append(due)
            self._spawn(self._await_answer(due, outcome))
        elif self._due:
            answered = _Due()
            answered.parts = outcome
            self._due.append(answered)
        elif outcome:
            return self._sender.send(outcome)
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

    def _go_on(self) -> None:
        """What held requests back may be over: take the deferred one, then those that were received meanwhile."""
        if self._closed:
            return
        if self._deferred is not None and not self._due and self._sender.is_idle:
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
        return not self._due and self._deferred is None and not self._awaits_turn and self._sender.is_idle

    # Answers out.

    def _spawn(self, work: "asyncio.Future[None] | object") -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_answer(self, due: _Due, outcome: Awaitable[Parts]) -> None:
        try:
            due.parts = await outcome
        except CloseConnection as error:
            self.hang_up(str(error))
            return
        except Exception as error:
            # The refusal itself failed, e.g. it is longer than a response may be. Who waits for it would wait forever.
            self.hang_up(_no_response(error))
            return
        if len(self._due) == 1:
            self._send_due()
        elif self._due and self._due[0].parts is not None and not self._sends_soon:
            # A sync or a fetch of a follower commits many requests at once, and each of them has a task that runs in
            # this turn of the loop. Their responses leave in one write when the last of these tasks has run.
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        """Sends the responses that are there and whose turn it is."""
        self._sends_soon = False
        if self._closed:
            return
        while self._due and (parts := self._due[0].parts) is not None:
            self._due.popleft()
            if parts:
                self._sender.send(parts)
        if not self._due:
            self._exclusive = False
            if self._deferred is None:  # else that one may be the long one
                self._release_long()
        self._go_on()

    def _release_long(self) -> None:
        """A long request is read from its frame while it is handled, so the frame counts until then."""
        if self._held_bytes:
            size, self._held_bytes = self._held_bytes, 0
            self._listener.receive_budget.release(size, self)

    def _storage_failed(self, error: StorageError) -> None:
        self.hang_up(str(error))

    def hang_up(self, reason: str) -> None:
        """Closes with one line saying why; what was answered before is given a moment to reach the client."""
        if not self._closed:
            logger.warning("closed the connection of %s: %s", self.peer, reason)
            self._sender.flush()
            self._closed = True
            self._transport.close()
            asyncio.get_running_loop().call_later(LAST_ANSWERS_S, self._transport.abort)

    def close(self) -> None:
        self._closed = True
        self._transport.abort()


def _no_response(error: Exception) -> str:
    return f"a request has no response: {type(error).__name__}: {error}"
