"""A region of a file that is part of a response."""

import os

from skep.base.errors import StorageError
from skep.base.files.files import File


class FileRegion:
    """Bytes of a response that are still in a file. The connection reads or sends them when their turn comes."""

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
        """Whether ``read`` and ``send_to`` need not wait for the disk. Only two pages are checked."""
        return self._file.is_cached(self._position + start, size)

    def read(self, start: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``start`` on. May wait for the disk. Raises StorageError when the file ends."""
        data = self._file.read(self._position + start, size)
        if len(data) < size:
            raise self._cut_short(start + len(data))
        return data

    def send_to(self, descriptor: int, start: int, size: int) -> int:
        """Sends up to ``size`` bytes to a socket with sendfile and returns how many the socket took.

        An OSError is the socket's. Raises StorageError if the file ends before ``start``.
        """
        with self._file.pinned() as file_descriptor:
            sent = os.sendfile(descriptor, file_descriptor, self._position + start, size)
        if sent == 0:
            raise self._cut_short(start)
        return sent

    def _cut_short(self, start: int) -> StorageError:
        return StorageError(f"{self._file.path}: ends before byte {self._position + start}")
