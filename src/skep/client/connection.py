"""A blocking connection to one broker.

The first request on a connection asks for the versions that the broker serves (ApiVersions version 0, which every
broker supports); each later request uses the newest version that both sides have.

A connection is secured before that, if its ``ClientSecurity`` says so: TLS, then the login of SASL. A session that ends
(KIP-368) is renewed by ``send``.

A broker sends the responses of a connection in the order of the requests. For several requests in flight call ``send``
for each and then ``receive`` for each; ``ask`` is one of both. A caller that must not block uses ``socket`` and
``frames`` itself (``produce.produce_pipe``).
"""

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.client.errors import ClientError, Silent, Unreachable, Unsupported
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.client.security.tls_failure import TLS_EXPECTED, tls_failure
from skep.wire.apis import API_VERSIONS, Api
from skep.wire.client_codec import common_version, decode_response, encode_request, request_header
from skep.wire.codec import Body
from skep.wire.primitives import INT32
from skep.wire.response_frames import ResponseFrames

MAX_RESPONSE_BYTES = 256 << 20
"""A longer response is taken for another protocol: the first bytes of an HTTP response are a length too."""
ALERT_LENGTHS = tuple(INT32.unpack(bytes((0x15, 3, minor, 0)))[0] for minor in range(5))
"""The first four bytes of an alert of TLS, taken for the length of a response."""


class _Request(NamedTuple):
    correlation_id: int
    api: Api
    version: int


class Connection:
    """Owns a socket and the queue of requests in flight. An error closes the connection for good."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        connect_timeout_s: float | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """Connects, and authenticates. Raises Unreachable, and SecurityFailure when TLS or the login fails."""
        self.peer = (host, port)
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._requests: deque[_Request] = deque()
        self.frames = ResponseFrames(MAX_RESPONSE_BYTES, largest_spare=MAX_RESPONSE_BYTES)
        self._received: deque[memoryview] = deque()
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_s or timeout_s)
        except OSError as error:
            raise Unreachable(f"no broker answers at {self.address} ({error_text(error)})") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._security = security
        # When the session is to be renewed, on the monotonic clock; None for one without an end.
        self._renew_at: float | None = None
        try:
            self._secure()
            self._socket.settimeout(timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._requests)

    @property
    def socket(self) -> socket.socket:
        return self._socket

    @property
    def is_usable(self) -> bool:
        """Whether a new request can be sent. An idle socket that is readable has been closed by the broker."""
        if self.in_flight or self._received or not self.frames.is_empty or self.fileno() < 0 or self.is_expiring:
            return False
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return not poll.poll(0)

    @property
    def is_expiring(self) -> bool:
        """Whether the session of SASL ends soon. ``send`` renews it; a caller that writes to ``socket`` itself has to
        get another connection."""
        return self._renew_at is not None and time.monotonic() >= self._renew_at

    def set_timeout(self, timeout_s: float) -> None:
        """Sets how long the broker may be silent while a response is due."""
        self._socket.settimeout(timeout_s)

    def fileno(self) -> int:
        """For ``select``, with one request in flight: a second response may already have been received."""
        return self._socket.fileno()

    def ask(self, api: Api, body: Body) -> Any:
        """Sends one request and returns its response. Raises Unsupported, before sending, for an API that the broker
        lacks."""
        self.send(api, body)
        return self.receive()

    def send(self, api: Api, body: Body | bytes, *, version: int | None = None) -> int:
        """Sends a request, for ``receive`` or ``receive_frame`` to return its response; returns the version.

        ``body`` as bytes is the encoded body, in the ``version`` that is given.
        """
        if version is None:
            version = self.version_of(api)
        if self._renew_at is not None and self.is_expiring:
            self._renew()
        self._send(api, version, body)
        return version

    def receive(self) -> Any:
        """Returns the response to the oldest request in flight."""
        _, api, version = self._requests[0]
        frame = self.receive_frame()
        try:
            return decode_response(api, version, frame)[1]
        except DecodeError as error:
            raise self.protocol_error(error) from None

    def receive_frame(self) -> memoryview:
        """Returns the bytes of the response to the oldest request in flight, header included.

        The frame is the caller's. Passed to ``frames.recycle``, its buffer serves a later response.
        """
        correlation_id, api, _ = self._requests[0]
        try:
            frame = self._next_frame()
        except OSError as error:
            raise self.lost(api, error) from None
        except DecodeError as error:
            raise self.protocol_error(error) from None
        if INT32.unpack_from(frame)[0] != correlation_id:
            self.close()
            raise ClientError(f"{self.address} sent a response that is not for {api.name}, the request in flight")
        self._requests.popleft()
        return frame

    def version_of(self, api: Api) -> int:
        """Returns the newest version that both sides have; raises Unsupported when there is none."""
        if not self._versions:
            self._send(API_VERSIONS, 0, {})
            response = self.receive()
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, f"{self.address} refused ApiVersions: {response.error_code.name}")
            self._versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        return newest_common_version(api, self._versions, self.address)

    def close(self) -> None:
        self._socket.close()

    def _secure(self) -> None:
        context = self._security.tls_context
        if context is not None:
            try:
                self._socket = context.wrap_socket(self._socket, server_hostname=self.peer[0])
            except OSError as error:
                raise tls_failure(self.address, error) from None
        self._authenticate()

    def _authenticate(self) -> None:
        exchange = self._security.login(self.address)
        if exchange is None:
            return
        request: tuple[Api, Body] | None = exchange.first()
        while request is not None:
            request = exchange.next(self.ask(*request))
        if exchange.renew_after_s is not None:
            self._renew_at = time.monotonic() + exchange.renew_after_s

    def _renew(self) -> None:
        """Authenticates again. The responses in flight are received first; nothing else may come in between."""
        self._renew_at = None
        try:
            while len(self._received) < len(self._requests):
                self._receive_some()
        except OSError as error:
            raise self.lost(self._requests[0].api, error) from None
        except DecodeError as error:
            raise self.protocol_error(error) from None
        kept = self._requests, self._received
        self._requests, self._received = deque(), deque()
        self._authenticate()
        self._requests, self._received = kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _send(self, api: Api, version: int, body: Body | bytes) -> None:
        correlation_id = self.next_correlation_id()
        if isinstance(body, bytes):
            request = request_header(api, version, correlation_id, self._client_id) + body
        else:
            request = encode_request(api, version, correlation_id, self._client_id, body)
        self._requests.append(_Request(correlation_id, api, version))
        try:
            self._socket.sendall(INT32.pack(len(request)) + request)
        except OSError as error:
            raise self.lost(api, error) from None

    def _next_frame(self) -> memoryview:
        while not self._received:
            self._receive_some()
        return self._received.popleft()

    def _receive_some(self) -> None:
        count = self._socket.recv_into(self.frames.get_buffer())
        if not count:
            raise ConnectionResetError("the connection was closed")
        self._received.extend(self.frames.received(count))

    def lost(self, api: Api, error: OSError) -> ClientError:
        """Closes the connection and returns the error to raise."""
        self.close()
        if isinstance(error, ssl.SSLError):
            # A refusal of our certificate arrives here with TLS 1.3, behind the handshake.
            return tls_failure(self.address, error)
        lost = Silent if isinstance(error, TimeoutError) else Unreachable
        hint = closed_hint(api, self._security) if isinstance(error, ConnectionError) else ""
        return lost(f"the broker at {self.address} sent no response to {api.name} ({error_text(error)}{hint})")

    def protocol_error(self, error: DecodeError) -> ClientError:
        """Closes the connection and returns the error to raise."""
        self.close()
        return not_kafka(self.address, error)


def newest_common_version(api: Api, versions: Mapping[int, tuple[int, int]], address: str) -> int:
    """Returns the newest version of ours that the broker serves; raises Unsupported when there is none."""
    oldest, newest = versions.get(api.key, (0, -1))
    version = common_version(api, oldest, newest)
    if version is None:
        has = "does not have it" if newest < 0 else f"has versions {oldest} to {newest}"
        raise Unsupported(f"{api.name} is needed and the broker at {address} {has}")
    return version


def closed_hint(api: Api, security: ClientSecurity) -> str:
    """Returns what may be wrong if a broker closes the connection at the first request."""
    return f"; {TLS_EXPECTED}" if api == API_VERSIONS and not security.wants_tls else ""


def not_kafka(address: str, error: DecodeError) -> ClientError:
    """Returns the error for bytes that are not a response. An alert of TLS is known by its length: 15 03 0x xx."""
    hint = f" ({TLS_EXPECTED})" if any(f"response of {length}" in str(error) for length in ALERT_LENGTHS) else ""
    return ClientError(f"the response of {address} is not Kafka's protocol: {error}{hint}")


def error_text(error: OSError) -> str:
    """Returns the system's message without the number that most ``str`` of these begin with."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error)
