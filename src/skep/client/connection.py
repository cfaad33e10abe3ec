"""One connection to one broker, that blocks: a request goes out, its answer is waited for.

The first thing asked on a connection is which versions the broker has (ApiVersions version 0, which every broker
answers); every later request goes in the newest version that both sides have.

A broker answers the requests of a connection in their order, so who wants several under way calls ``send`` for each and
``receive`` for each; ``ask`` is one of each. Who wants to read and write as the socket lets uses ``socket`` itself.
"""

import select
import socket
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.client.errors import ClientError, Unreachable, Unsupported
from skep.wire.apis import API_VERSIONS, Api
from skep.wire.client_codec import common_version, decode_response, encode_request
from skep.wire.codec import Body
from skep.wire.primitives import INT32

MAX_ANSWER_BYTES = 256 << 20
"""Longer is taken for something that is not a Kafka broker: the first bytes of an HTTP answer are a length too."""


class Unanswered(NamedTuple):
    correlation_id: int
    api: Api
    version: int


class Connection:
    """Owns a socket and the list of what is unanswered on it. After an error it is closed and stays so."""

    def __init__(
        self, host: str, port: int, *, client_id: str, timeout_s: float, connect_timeout_s: float | None = None
    ) -> None:
        self.peer = (host, port)
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._unanswered: deque[Unanswered] = deque()
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_s or timeout_s)
        except OSError as error:
            raise Unreachable(f"no broker answers at {self.address} ({words_of(error)})") from None
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def unanswered(self) -> int:
        """How many requests are under way."""
        return len(self._unanswered)

    @property
    def socket(self) -> socket.socket:
        return self._socket

    @property
    def is_usable(self) -> bool:
        """Whether a new request may go out. What can be read while none is under way is the end of the connection."""
        if self.unanswered or self.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return not poll.poll(0)

    def set_timeout(self, timeout_s: float) -> None:
        """How long the broker may keep quiet while we wait for it."""
        self._socket.settimeout(timeout_s)

    def fileno(self) -> int:
        """For ``select``: readable when there is something to receive."""
        return self._socket.fileno()

    def ask(self, api: Api, body: Body) -> Any:
        """The answer to one request. Unsupported, before anything is sent, when the broker does not have the API."""
        self.send(api, body)
        return self.receive()

    def send(self, api: Api, body: Body) -> int:
        """Sends a request whose answer ``receive`` gives later; the version it went in."""
        version = self.version_of(api)
        self._send(api, version, body)
        return version

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        _, api, version = self._unanswered[0]
        frame = self.receive_frame()
        try:
            return decode_response(api, version, bytes(frame))[1]
        except DecodeError as error:
            raise self.nonsense(error) from None

    def receive_frame(self, buffer: bytearray | None = None) -> memoryview:
        """The same as bytes, header included, for who reads them alone.

        They lie in ``buffer`` when they fit, else in a new one, which is the ``obj`` of what is given back: who is done
        with one answer can receive the next in its place.
        """
        correlation_id, api, _ = self._unanswered[0]
        try:
            (length,) = INT32.unpack(self._receive(bytearray(INT32.size), INT32.size))
            if not INT32.size <= length <= MAX_ANSWER_BYTES:
                raise DecodeError(f"an answer of {length} bytes")
            frame = self._receive(buffer if buffer is not None and len(buffer) >= length else bytearray(length), length)
        except OSError as error:
            raise self.broken(api, error) from None
        except DecodeError as error:
            raise self.nonsense(error) from None
        if INT32.unpack_from(frame)[0] != correlation_id:
            self.close()
            raise ClientError(f"{self.address} answered another request than {api.name}")
        self._unanswered.popleft()
        return frame

    def version_of(self, api: Api) -> int:
        """The newest version that both sides have; Unsupported when there is none."""
        if not self._versions:
            self._send(API_VERSIONS, 0, {})
            answer = self.receive()
            if answer.error_code is not ErrorCode.none:
                raise KafkaError(answer.error_code, f"{self.address} does not say its versions")
            self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        return newest_common_version(api, self._versions, self.address)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def _remember(self, api: Api, version: int) -> int:
        correlation_id = self.next_correlation_id()
        self._unanswered.append(Unanswered(correlation_id, api, version))
        return correlation_id

    def _send(self, api: Api, version: int, body: Body) -> None:
        request = encode_request(api, version, self._remember(api, version), self._client_id, body)
        try:
            self._socket.sendall(INT32.pack(len(request)) + request)
        except OSError as error:
            raise self.broken(api, error) from None

    def _receive(self, buffer: bytearray, size: int) -> memoryview:
        view = memoryview(buffer)[:size]
        position = 0
        while position < size:
            count = self._socket.recv_into(view[position:])
            if not count:
                raise ConnectionResetError("the connection was closed")
            position += count
        return view

    def broken(self, api: Api, error: OSError) -> Unreachable:
        """Closes the connection; the error to raise."""
        self.close()
        return Unreachable(f"the broker at {self.address} gave no answer to {api.name} ({words_of(error)})")

    def nonsense(self, error: DecodeError) -> ClientError:
        """Closes the connection; the error to raise."""
        self.close()
        return ClientError(f"what {self.address} answered is not Kafka's protocol: {error}")


def newest_common_version(api: Api, versions: Mapping[int, tuple[int, int]], address: str) -> int:
    """The newest version that we and the broker with these both have; Unsupported when there is none."""
    oldest, newest = versions.get(api.key, (0, -1))
    version = common_version(api, oldest, newest)
    if version is None:
        has = "does not have it" if newest < 0 else f"has versions {oldest} to {newest}"
        raise Unsupported(f"{api.name} is needed and the broker at {address} {has}")
    return version


def words_of(error: OSError) -> str:
    """The system's words, without the number in front that ``str`` of most of these puts there."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error)
