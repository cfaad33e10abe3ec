"""A connection to another broker, on the event loop, with many requests in flight.

The first request asks for the versions that the other broker serves, as in ``connection``. A connection is not
repaired: when the other broker closes it, is silent for too long or sends what is not a response, it is closed and all
requests in flight fail; the caller makes a new one. ``peers`` keeps connections that are shared.

A session of SASL that ends (KIP-368) is renewed on the connection. Requests wait meanwhile: the other broker accepts
nothing else between the messages of a login.

Head of line: a broker sends responses in the order of the requests, so one that waits (a Fetch for data, markers for
their replicas) holds back those behind it. Such requests need a connection of their own.
"""

import asyncio
import socket
import ssl
from collections import deque
from typing import Any, cast

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.client.connection import MAX_RESPONSE_BYTES, closed_hint, error_text, newest_common_version, not_kafka
from skep.client.errors import ClientError, Unreachable
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.client.security.sasl_exchange import SaslExchange
from skep.client.security.tls_failure import tls_failure
from skep.wire.apis import API_VERSIONS, Api
from skep.wire.client_codec import decode_response, encode_request, request_header
from skep.wire.codec import Body
from skep.wire.primitives import INT32
from skep.wire.response_frames import ResponseFrames


class _Request:
    """A request in flight. ``frame`` is already done when the caller was cancelled."""

    __slots__ = ("api", "correlation_id", "frame", "timer")

    def __init__(self, correlation_id: int, api: Api, frame: "asyncio.Future[memoryview]") -> None:
        self.correlation_id = correlation_id
        self.api = api
        self.frame = frame
        self.timer: asyncio.TimerHandle | None = None


class Peer(asyncio.BufferedProtocol):
    """Owns the transport and the requests in flight on it.

    Between calls ``_requests`` has every request without a response, in order, also those whose caller was cancelled:
    their response still arrives, and is dropped. It is empty once ``is_closed``.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port = host, port
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._frames = ResponseFrames(max_response_bytes)
        self._versions: dict[int, tuple[int, int]] = {}
        self._requests: deque[_Request] = deque()
        self._correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Timeout | None = None
        self._ended: ClientError | None = None
        self._security = security
        # The login under way on an open connection, and what begins the next one.
        self._renewal: asyncio.Task[None] | None = None
        self._renewal_timer: asyncio.TimerHandle | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended; False before ``connect``."""
        return self._ended is not None

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._requests)

    async def connect(self) -> None:
        """Connects, asks for the versions and logs in. Raises Unreachable, ClientError or KafkaError when that fails.

        The connection is closed then, and when this is cancelled.
        """
        self._check_open()
        try:
            await self._connect()
        except OSError as error:
            if self._security.wants_tls and isinstance(error, ssl.SSLError | ConnectionResetError):
                self._end(tls_failure(self.address, error))
            self._end(Unreachable(f"no broker answers at {self.address} ({error_text(error)})"))
            self._check_open()
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> None:
        loop, context = asyncio.get_running_loop(), self._security.tls_context
        host_name = None if context is None else self._host
        try:
            async with asyncio.timeout(self._timeout_s) as self._connecting:
                await loop.create_connection(
                    lambda: self, self._host, self._port, ssl=context, server_hostname=host_name
                )
                response = await self.ask(API_VERSIONS, {}, version=0)
                if response.error_code is not ErrorCode.none:
                    raise KafkaError(
                        response.error_code, f"{self.address} refused ApiVersions: {response.error_code.name}"
                    )
                self._versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
                await self._authenticate()
        finally:
            self._connecting = None

    async def _authenticate(self) -> None:
        if self._security.mechanism is None:
            return
        # In a thread: OAUTHBEARER may ask for a token, and SCRAM derives a key from the password.
        exchange = await asyncio.to_thread(self._security.login, self.address)
        assert exchange is not None
        request: tuple[Api, Body] | None = exchange.first()
        while request is not None:
            api, body = request
            version = self.version_of(api)
            response = decode_response(api, version, await self._send(api, version, body, None))[1]
            request = await asyncio.to_thread(exchange.next, response)
        self._renew_later(exchange)

    def _renew_later(self, exchange: SaslExchange) -> None:
        if exchange.renew_after_s is not None and self._ended is None:
            loop = asyncio.get_running_loop()
            self._renewal_timer = loop.call_later(exchange.renew_after_s, self._begin_renewal)

    def _begin_renewal(self) -> None:
        loop = asyncio.get_running_loop()
        self._renewal = loop.create_task(self._renew(), name=f"renew the session with {self.address}")

    async def _renew(self) -> None:
        try:
            await self._authenticate()
        except ClientError as error:
            self._end(error)
        except DecodeError as error:
            self._protocol_error(error)
        finally:
            self._renewal = None

    async def _wait_for_renewal(self, renewal: "asyncio.Task[None]") -> None:
        # Shielded: a cancelled caller must not cancel the login.
        await asyncio.shield(renewal)
        self._check_open()

    async def ask(self, api: Api, body: Body, *, version: int | None = None, timeout_s: float | None = None) -> Any:
        """Returns the response to one request; without ``version``, in the newest version that both sides have.

        Cancelling leaves the connection open; the request may have been carried out or not.
        """
        if self._renewal is not None:
            await self._wait_for_renewal(self._renewal)
        if version is None:
            version = self.version_of(api)
        frame = await self._send(api, version, body, timeout_s)
        try:
            return decode_response(api, version, frame)[1]
        except DecodeError as error:
            raise self._protocol_error(error) from None

    async def ask_raw(
        self, api: Api, body: Body | bytes, *, version: int | None = None, timeout_s: float | None = None
    ) -> memoryview:
        """Returns the bytes of a response, header included; they are the caller's.

        ``body`` as bytes is the encoded body, in the ``version`` that is given.
        """
        if self._renewal is not None:
            await self._wait_for_renewal(self._renewal)
        return await self._send(api, self.version_of(api) if version is None else version, body, timeout_s)

    def recycle(self, frame: memoryview) -> None:
        """Takes back a frame of ``ask_raw`` that, with all views into it, is no longer read; its buffer is reused."""
        self._frames.recycle(frame)

    def version_of(self, api: Api) -> int:
        """Returns the newest version that both sides have; raises Unsupported when there is none."""
        self._check_open()
        return newest_common_version(api, self._versions, self.address)

    def close(self) -> None:
        """Closes the connection at once; unsent bytes are dropped. Requests in flight raise Unreachable."""
        self._end(Unreachable(f"the connection to {self.address} was closed"))

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._ended is not None:
            self._transport.abort()
        elif (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self._end(tls_failure(self.address, exc))
        reason = error_text(exc) if isinstance(exc, OSError) else "the connection was closed"
        hint = closed_hint(self._requests[0].api, self._security) if self._requests else ""
        self._end(Unreachable(f"lost the connection to the broker at {self.address} ({reason}{hint})"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._frames.received(nbytes):
                self._frame_received(frame)
        except DecodeError as error:
            self._protocol_error(error)

    def _frame_received(self, frame: memoryview) -> None:
        if not self._requests:
            raise DecodeError("a response without a request in flight")
        request = self._requests[0]
        (correlation_id,) = INT32.unpack_from(frame)
        if correlation_id != request.correlation_id:
            raise DecodeError(
                f"response {correlation_id}, and the next in order is {request.correlation_id} to {request.api.name}"
            )
        self._requests.popleft()
        if request.timer is not None:
            request.timer.cancel()
        if not request.frame.done():
            request.frame.set_result(frame)

    def _send(
        self, api: Api, version: int, body: Body | bytes, timeout_s: float | None
    ) -> "asyncio.Future[memoryview]":
        self._check_open()
        assert self._transport is not None, "connect comes first"
        # Encoded before it is queued: a body that the codec refuses must leave no entry, for no response would come.
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if isinstance(body, bytes):
            encoded = request_header(api, version, correlation_id, self._client_id) + body
        else:
            encoded = encode_request(api, version, correlation_id, self._client_id, body)
        loop = asyncio.get_running_loop()
        request = _Request(correlation_id, api, loop.create_future())
        request.timer = loop.call_later(self._timeout_s if timeout_s is None else timeout_s, self._timed_out, request)
        self._requests.append(request)
        self._transport.write(INT32.pack(len(encoded)) + encoded)
        return request.frame

    def _timed_out(self, request: _Request) -> None:
        self._end(Unreachable(f"the broker at {self.address} sent no response to {request.api.name} (timed out)"))

    def _protocol_error(self, error: DecodeError) -> ClientError:
        """Closes the connection and returns the error to raise."""
        raised = not_kafka(self.address, error)
        self._end(raised)
        return raised

    def _check_open(self) -> None:
        if self._ended is not None:
            raise _copy(self._ended)

    def _end(self, error: ClientError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        if self._connecting is not None and not self._connecting.expired():
            # ``connect`` need not wait for the timeout of a connection that nobody wants any more.
            self._connecting.reschedule(0)
        if self._renewal_timer is not None:
            self._renewal_timer.cancel()
        if self._transport is not None:
            # Not ``close``, which waits until everything is sent: the other broker may never read it.
            self._transport.abort()
        while self._requests:
            request = self._requests.popleft()
            if request.timer is not None:
                request.timer.cancel()
            if not request.frame.done():
                request.frame.set_exception(_copy(error))


def _copy(error: ClientError) -> ClientError:
    """Returns an error for each caller: one raised in several tasks would gather the tracebacks of all."""
    return type(error)(*error.args)
