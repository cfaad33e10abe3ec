"""One connection to another broker, on the event loop: many requests under way, answers in the order of the requests.

The first thing asked is which versions the other has, as in ``connection``. There is no second chance on a connection:
when the other breaks it, is silent too long or answers what is not an answer, it is closed, everybody who waits on it
is told, and who wants to go on makes a new one. ``peers`` keeps those that are shared.

Head of line. A broker answers in order, so an answer that waits (a Fetch for data, markers for their replicas) holds
back those behind it: who asks for what waits has a connection of its own.
"""

import asyncio
import socket
from collections import deque
from typing import Any, cast

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.client.connection import MAX_ANSWER_BYTES, newest_common_version, words_of
from skep.client.errors import ClientError, Unreachable
from skep.wire.apis import API_VERSIONS, Api
from skep.wire.client_codec import decode_response, encode_request, request_header
from skep.wire.codec import Body
from skep.wire.primitives import INT32
from skep.wire.response_frames import AnswerFrames


class _Due:
    """One request that has no answer yet. ``frame`` is done when nobody waits for it any more."""

    __slots__ = ("api", "correlation_id", "frame", "timer")

    def __init__(self, correlation_id: int, api: Api, frame: "asyncio.Future[memoryview]") -> None:
        self.correlation_id = correlation_id
        self.api = api
        self.frame = frame
        self.timer: asyncio.TimerHandle | None = None


class Peer(asyncio.BufferedProtocol):
    """Owns the transport and what is due on it.

    Between calls ``_due`` has one entry for each request that was sent and not answered, in order, also for those
    whose asker was cancelled: their answer still comes, and is dropped. Once ``is_closed`` nothing is due.
    """

    def __init__(
        self, host: str, port: int, *, client_id: str, timeout_s: float, max_answer_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port = host, port
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._frames = AnswerFrames(max_answer_bytes)
        self._versions: dict[int, tuple[int, int]] = {}
        self._due: deque[_Due] = deque()
        self._correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Timeout | None = None
        self._ended: ClientError | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it is over; before ``connect`` it is not."""
        return self._ended is not None

    @property
    def unanswered(self) -> int:
        """How many requests are under way."""
        return len(self._due)

    async def connect(self) -> None:
        """Connects and asks for the versions. Unreachable, ClientError or KafkaError when that fails.

        Then, and when it is cancelled, the connection is closed.
        """
        self._check_open()
        try:
            answer = await self._connect()
            if answer.error_code is not ErrorCode.none:
                raise KafkaError(answer.error_code, f"{self.address} does not say its versions")
        except OSError as error:
            self._end(Unreachable(f"no broker answers at {self.address} ({words_of(error)})"))
            self._check_open()
        except BaseException:
            self.close()
            raise
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    async def _connect(self) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s) as self._connecting:
                await asyncio.get_running_loop().create_connection(lambda: self, self._host, self._port)
                return await self.ask(API_VERSIONS, {}, version=0)
        finally:
            self._connecting = None

    async def ask(self, api: Api, body: Body, *, version: int | None = None, timeout_s: float | None = None) -> Any:
        """The answer to one request, in the newest version that both sides have if none is given.

        Cancelled, it leaves the connection as it is; the request may have been done or not.
        """
        if version is None:
            version = self.version_of(api)
        frame = await self._send(api, version, body, timeout_s)
        try:
            return decode_response(api, version, frame)[1]
        except DecodeError as error:
            raise self._nonsense(error) from None

    async def ask_raw(
        self, api: Api, body: Body | bytes, *, version: int | None = None, timeout_s: float | None = None
    ) -> memoryview:
        """The same as bytes, header included, for who reads them alone; they are the caller's to keep.

        A body that is bytes is what stands behind the header in the version that is given.
        """
        return await self._send(api, self.version_of(api) if version is None else version, body, timeout_s)

    def give_back(self, frame: memoryview) -> None:
        """What ``ask_raw`` gave is not needed any more, nor any part of it: its room serves for another answer."""
        self._frames.give_back(frame)

    def version_of(self, api: Api) -> int:
        """The newest version that both sides have; Unsupported when there is none."""
        self._check_open()
        return newest_common_version(api, self._versions, self.address)

    def close(self) -> None:
        """At once, what is still to be sent is not sent. Those who wait get Unreachable."""
        self._end(Unreachable(f"the connection to {self.address} was closed"))

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._ended is not None:
            self._transport.abort()
        elif (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        words = words_of(exc) if isinstance(exc, OSError) else "the connection was closed"
        self._end(Unreachable(f"the broker at {self.address} is gone ({words})"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._frames.received(nbytes):
                self._answered(frame)
        except DecodeError as error:
            self._nonsense(error)

    def _answered(self, frame: memoryview) -> None:
        if not self._due:
            raise DecodeError("an answer that nobody asked for")
        due = self._due[0]
        (correlation_id,) = INT32.unpack_from(frame)
        if correlation_id != due.correlation_id:
            raise DecodeError(f"answer {correlation_id} where {due.correlation_id}, to {due.api.name}, is due")
        self._due.popleft()
        if due.timer is not None:
            due.timer.cancel()
        if not due.frame.done():
            due.frame.set_result(frame)

    def _send(
        self, api: Api, version: int, body: Body | bytes, timeout_s: float | None
    ) -> "asyncio.Future[memoryview]":
        self._check_open()
        assert self._transport is not None, "connect comes first"
        # Also what the codec refuses must not leave an entry: nothing of it would be sent and no answer would come.
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if isinstance(body, bytes):
            request = request_header(api, version, correlation_id, self._client_id) + body
        else:
            request = encode_request(api, version, correlation_id, self._client_id, body)
        loop = asyncio.get_running_loop()
        due = _Due(correlation_id, api, loop.create_future())
        due.timer = loop.call_later(self._timeout_s if timeout_s is None else timeout_s, self._timed_out, due)
        self._due.append(due)
        self._transport.write(INT32.pack(len(request)) + request)
        return due.frame

    def _timed_out(self, due: _Due) -> None:
        self._end(Unreachable(f"the broker at {self.address} gave no answer to {due.api.name} (timed out)"))

    def _nonsense(self, error: DecodeError) -> ClientError:
        """Closes the connection; the error to raise."""
        nonsense = ClientError(f"what {self.address} answered is not Kafka's protocol: {error}")
        self._end(nonsense)
        return nonsense

    def _check_open(self) -> None:
        if self._ended is not None:
            raise _copy(self._ended)

    def _end(self, error: ClientError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        if self._connecting is not None and not self._connecting.expired():
            # Nobody has to wait for the time-out of a connection that is not wanted any more.
            self._connecting.reschedule(0)
        if self._transport is not None:
            # Not ``close``, which waits until everything is sent: the other may never read it.
            self._transport.abort()
        while self._due:
            due = self._due.popleft()
            if due.timer is not None:
                due.timer.cancel()
            if not due.frame.done():
                due.frame.set_exception(_copy(error))


def _copy(error: ClientError) -> ClientError:
    """One for each who waits: raised in several tasks, one error would gather the tracebacks of all."""
    return type(error)(*error.args)
