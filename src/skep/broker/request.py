"""What dispatch, handlers and connections pass to each other: requests, answers, and the parts of an answer."""

import os
from collections.abc import Awaitable, Generator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from skep.base.errors import StorageError
from skep.base.files.files import File
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

    def __str__(self) -> str:
        return f"{self._file.path} at {self._position}"

    @property
    def has_descriptor(self) -> bool:
        return self._file.has_descriptor

    def is_cached(self, start: int, size: int) -> bool:
        """Whether ``read`` and ``send_to`` need not wait for the disk, as far as a look at two places tells."""
        return self._file.is_cached(self._position + start, size)

    def read(self, start: int, size: int) -> bytes:
        """``size`` bytes from ``start`` on; may wait for the disk. StorageError when they cannot be read."""
        data = self._file.read(self._position + start, size)
        if len(data) < size:
            raise self._cut_short(start + len(data))
        return data

    def send_to(self, descriptor: int, start: int, size: int) -> int:
        """Sends up to ``size`` bytes to a socket by sendfile; how many it took. OSError is what the socket said."""
        with self._file.pinned() as file_descriptor:
            sent = os.sendfile(descriptor, file_descriptor, self._position + start, size)
        if sent == 0:
            raise self._cut_short(start)
        return sent

    def _cut_short(self, start: int) -> StorageError:
        return StorageError(f"{self._file.path}: ends before byte {self._position + start}")


@dataclass(slots=True)
class Request:
    """One decoded request; ``body`` is kio's object of the version that the client chose.

    ``unread`` is the work that makes the body of a long request, None for all others. An exclusive request holds back
    the ones behind it until it is answered, whatever it asks: it is handled in slices, and nothing may come in between.
    A long one is, and a handler may find that another is.

    Nothing else of it is changed; it is not frozen only because that costs a microsecond a request.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    body: Any
    unread: Generator[None, None, Any] | None = None
    is_exclusive: bool = False
    size: int = 0

    def who(self) -> str:
        return (
            f"{self.api.name} v{self.version} of {self.client_host} (client id {self.client_id!r}, {self.size} bytes)"
        )


Parts = Sequence[Sized]
"""An encoded answer without its frame length: bytes and FileRegions."""

NO_ANSWER: Parts = ()
"""acks=0: nothing goes back."""

Answer = Body | Parts
"""What a handler gives: a mapping for the codec, or parts that are encoded already."""

Outcome = Parts | Awaitable[Parts]


class CloseConnection(Exception):
    """The only honest answer left is to hang up, e.g. a failed produce with acks=0. Says why."""
