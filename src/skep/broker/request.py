"""What dispatch, handlers and connections pass to each other: requests, answers, and the parts of an answer."""

from collections.abc import Awaitable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from skep.base.errors import StorageError
from skep.base.files import File
from skep.wire.apis import Api
from skep.wire.codec import Body


class FileRegion:
    """Bytes of an answer that still lie in a file; the connection reads them when their turn comes."""

    __slots__ = ("_file", "_position", "_size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self._file = file
        self._position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self, start: int, size: int) -> bytes:
        """``size`` bytes from ``start`` on; may wait for the disk, so it runs in a thread. StorageError if it fails."""
        data = self._file.read(self._position + start, size)
        if len(data) < size:
            raise StorageError(f"{self._file.path}: {size - len(data)} bytes are missing at {self._position + start}")
        return data

    def read_if_cached(self, start: int, size: int) -> bytes | None:
        """The same without waiting for the disk, as far as its first and last byte tell; None when it would wait."""
        if self._file.is_cached(self._position + start, size):
            return self.read(start, size)
        return None


@dataclass(slots=True)
class Request:
    """One decoded request; not to be changed, and not frozen only because that costs a microsecond a request. ``body`` is kio's object of the version that the client chose."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    body: Any


Parts = Sequence[Sized]
"""An encoded answer without its frame length: bytes and FileRegions."""

NO_ANSWER: Parts = ()
"""acks=0: nothing goes back."""

Answer = Body | Parts
"""What a handler gives: a mapping for the codec, or parts that are encoded already."""

Outcome = Parts | Awaitable[Parts]


class CloseConnection(Exception):
    """The only honest answer left is to hang up, e.g. a failed produce with acks=0. Says why."""
