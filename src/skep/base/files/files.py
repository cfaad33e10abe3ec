"""The small face of the file system that everything durable goes through: ``File`` and ``Files``.

``OsFiles`` (``os_files.py``) is the real one; ``MemoryFiles`` (``memory_files.py``) forgets on a crash what was not
synced and fails when a test tells it to. One contract suite runs over both.

What is durable: the bytes of a file after ``File.sync``; the *name* of a file or directory (after its creation, rename
or removal) only after ``Files.sync_directory`` of the directory it stands in. A refusal of the disk is always a
``StorageError`` that names the path and the reason; the OSError behind it is its ``__cause__``.

Threads: ``File.append``, ``truncate`` and ``close`` belong to one thread (the event loop's); ``read``, ``overwrite``,
``sync`` and ``pinned`` may run in any thread at the same time as an append.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from skep.base.errors import StorageError

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """A file that grows at its end. It stays valid when its descriptor is closed behind it to make room."""

    path: str
    size: int
    """Bytes of the file that count. What a failed append may have left behind them is never read."""

    @property
    def has_descriptor(self) -> bool:
        """Whether ``pinned`` gives a descriptor for sendfile."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Writes the buffers at the end in one call: all of them, or StorageError and the size is as before."""
        ...

    def overwrite(self, position: int, data: Buffer) -> None:
        """Writes again what is there already, after a sync that failed; the size does not change."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a read need not wait for the disk, as far as one page inside of each end can tell.

        The pages of the ends themselves tell nothing: whoever found the region has just read them.
        """
        ...

    def sync(self) -> None:
        """Returns when all that was appended before the call is on the disk."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts the file; durable after the next sync."""
        ...

    def pinned(self) -> AbstractContextManager[int]:
        """A descriptor for reading that stays open until the context ends."""
        ...

    def close(self) -> None:
        """Gives the descriptor back (when the last pin has gone). The next use opens the file again."""
        ...


class DiskSpace(NamedTuple):
    """As ``df`` counts it: what is kept for root is not there."""

    used_bytes: int
    total_bytes: int

    @property
    def used_ratio(self) -> float:
        return self.used_bytes / self.total_bytes if self.total_bytes else 1.0


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """Names: what can be done with files and directories, not with their content."""

    def open(self, path: str, *, create: bool = False) -> File:
        """The file at ``path``, created empty when it is missing and ``create`` says so."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Creates the directory and those above it; it may exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def rename(self, old: str, new: str) -> None:
        """One step for everybody who looks; replaces ``new``."""
        ...

    def rename_file(self, file: File, new: str) -> None:
        """Renames under the hands of those who read it: ``file`` stays valid."""
        ...

    def remove(self, path: str) -> None:
        """It may be gone already."""
        ...

    def remove_tree(self, path: str) -> None:
        """A directory with all that is in it; it may be gone already."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def read_whole(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """The file has the old content or the new one whatever happens; without ``sync`` it may be empty after a
        power cut."""
        ...

    def sync_file(self, path: str) -> None:
        """Syncs the content of a file that nobody holds open."""
        ...

    def disk_space(self, path: str) -> DiskSpace:
        """Of the disk that holds ``path``."""
        ...

    def lock(self, path: str) -> DirectoryLock | None:
        """Takes the lock file for this process; None when another one has it."""
        ...


def refused(path: str, error: OSError) -> StorageError:
    """The StorageError for what the operating system said about ``path``."""
    return StorageError(f"{path}: {os.strerror(error.errno) if error.errno else error}")
