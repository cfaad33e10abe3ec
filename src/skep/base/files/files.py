"""The interface of the file system for all durable data: ``File`` and ``Files``.

``OsFiles`` (``os_files.py``) is the real one. The tests' ``MemoryFiles`` loses what was not synced in a crash, and
fails on demand. One contract suite runs over both.

Durability: the bytes of a file are durable after ``File.sync``. The *name* of a file or directory (after its creation,
rename or removal) is durable only after ``Files.sync_directory`` of its directory. An error of the disk is always a
``StorageError`` with the path and the reason; its ``__cause__`` is the OSError.

Threads: ``File.append``, ``truncate`` and ``close`` belong to one thread (the event loop's). ``read``, ``overwrite``,
``sync`` and ``pinned`` may run in any thread at the same time as an append.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from skep.base.errors import StorageError

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """A file that grows at its end. It stays valid when its descriptor is closed to make room for others."""

    path: str
    size: int
    """The number of valid bytes. Bytes that a failed append left after them are never read."""

    @property
    def has_descriptor(self) -> bool:
        """Whether ``pinned`` returns a descriptor for sendfile."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Writes all buffers at the end in one call. After StorageError the size is unchanged."""
        ...

    def overwrite(self, position: int, data: Buffer) -> None:
        """Writes existing bytes again, after a sync that failed. The size does not change."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Returns up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Returns whether a read need not wait for the disk, judged by one page inside each end of the region.

        The pages at the ends themselves say nothing: finding the region has just read them.
        """
        ...

    def sync(self) -> None:
        """Returns when everything that was appended before the call is on the disk."""
        ...

    def truncate(self, size: int) -> None:
        """Truncates the file. This is durable after the next sync."""
        ...

    def pinned(self) -> AbstractContextManager[int]:
        """Returns a descriptor for reading that stays open until the context ends."""
        ...

    def close(self) -> None:
        """Closes the descriptor when the last pin is released. The next use opens the file again."""
        ...


class DiskSpace(NamedTuple):
    """Disk space as ``df`` counts it, without the space reserved for root."""

    used_bytes: int
    total_bytes: int

    @property
    def used_ratio(self) -> float:
        return self.used_bytes / self.total_bytes if self.total_bytes else 1.0


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """Operations on files and directories by name."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Returns the file at ``path``. With ``create``, a missing file is created empty."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Creates the directory and its parents. It may exist already."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def rename(self, old: str, new: str) -> None:
        """Renames atomically. Replaces ``new``."""
        ...

    def rename_file(self, file: File, new: str) -> None:
        """Renames an open file. ``file`` stays valid for its readers."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file. It may be missing."""
        ...

    def remove_tree(self, path: str) -> None:
        """Removes a directory with its content. It may be missing."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def read_whole(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replaces the content of a file: after a crash it has the old or the new content. Without ``sync`` it may be
        empty after a power cut."""
        ...

    def sync_file(self, path: str) -> None:
        """Syncs the content of a file that is not open."""
        ...

    def disk_space(self, path: str) -> DiskSpace:
        """Returns the space of the disk that holds ``path``."""
        ...

    def lock(self, path: str) -> DirectoryLock | None:
        """Locks the file for this process. Returns None if another process has the lock."""
        ...


def refused(path: str, error: OSError) -> StorageError:
    """Returns the StorageError for an error of the operating system about ``path``."""
    return StorageError(f"{path}: {os.strerror(error.errno) if error.errno else error}")
