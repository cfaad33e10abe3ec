"""One connection to one broker, that blocks: a request goes out, its answer is waited for.

The first thing asked on a connection is which versions the broker has (ApiVersions version 0, which every broker
answers); every later request goes in the newest version that both sides have.
"""

import socket
from types import TracebackType
from typing import Any, Self

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.client.errors import ClientError, Unreachable, Unsupported
from skep.wire.apis import API_VERSIONS, Api
from skep.wire.client_codec import common_version, decode_response, encode_request
from skep.wire.codec import Body
from skep.wire.primitives import INT32

MAX_ANSWER_BYTES = 256 << 20
"""Longer is taken for something that is not a Kafka broker: the first bytes of an HTTP answer are a length too."""


class Connection:
    """Owns a socket. Between calls nothing is unanswered on it; after an error it is closed and stays so."""

    def __init__(self, host: str, port: int, *, client_id: str, timeout_s: float) -> None:
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise Unreachable(f"no broker answers at {self.address} ({_words(error)})") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, api: Api, body: Body) -> Any:
        """The answer to one request. Unsupported, before anything is sent, when the broker does not have the API."""
        return self._exchange(api, self._version_of(api), body)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _version_of(self, api: Api) -> int:
        if not self._versions:
            answer = self._exchange(API_VERSIONS, 0, {})
            if answer.error_code is not ErrorCode.none:
                raise KafkaError(answer.error_code, f"{self.address} does not say its versions")
            self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = common_version(api, oldest, newest)
        if version is None:
            has = "does not have it" if newest < 0 else f"has versions {oldest} to {newest}"
            raise Unsupported(f"{api.name} is needed and the broker at {self.address} {has}")
        return version

    def _exchange(self, api: Api, version: int, body: Body) -> Any:
        self._correlation_id += 1
        request = encode_request(api, version, self._correlation_id, self._client_id, body)
        try:
            self._socket.sendall(INT32.pack(len(request)) + request)
            frame = self._receive_frame()
            correlation_id, answer = decode_response(api, version, frame)
        except OSError as error:
            self.close()
            raise Unreachable(f"the broker at {self.address} gave no answer to {api.name} ({_words(error)})") from None
        except DecodeError as error:
            self.close()
            raise ClientError(f"what {self.address} answered is not Kafka's protocol: {error}") from None
        if correlation_id != self._correlation_id:
            self.close()
            raise ClientError(f"{self.address} answered another request than {api.name}")
        return answer

    def _receive_frame(self) -> bytes:
        (length,) = INT32.unpack(self._receive(INT32.size))
        if not INT32.size <= length <= MAX_ANSWER_BYTES:
            raise DecodeError(f"an answer of {length} bytes")
        return self._receive(length)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionResetError("the connection was closed")
            data += piece
        return bytes(data)


def _words(error: OSError) -> str:
    """The system's words, without the number in front that ``str`` of most of these puts there."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error)
