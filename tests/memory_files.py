"""Files in memory that model what a crash leaves of them, and that fail on demand.

Bytes are durable after ``sync`` of their file, names after ``sync_directory`` of their directory. A failed sync loses
the bytes it was for, as in a kernel: they can still be read, but a later sync makes them durable only if they have been
written again.

    files.stop_at(17)                  the 17th write or sync from now on raises Crashed, and so do all later ones
    files.crash(names=..., content=...)    the machine restarts with what survives
    files.fail("sync", times=1)        the next sync raises StorageError
"""

import enum
import errno
import os
import posixpath
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from skep.base.errors import StorageError
from skep.base.files.files import Buffer, DirectoryLock, DiskSpace, File


class Crashed(BaseException):
    """The process dies here. It is not an Exception, so that the code under test cannot catch it."""


class Survivors(enum.Enum):
    """What a crash leaves of the data and names that were not synced."""

    SYNCED = "nothing"
    TORN = "the first half; of names, what was taken away is gone, and what was added too; what was renamed, is"
    ZEROS = "the first half, and zeros for the rest"
    CUT = "that files were made shorter, and nothing of what was written; of names, nothing"
    ALL = "everything, as after kill -9, which does not make it durable"


class _Content:
    """The bytes of one file: as they are read, as they are on disk, and the ranges that are not on disk yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.dirty: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int]] = []
        self.shortest: int | None = None
        """The shortest size since the last sync, if it was truncated."""

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.shortest = size if self.shortest is None else min(self.shortest, size)
        self.lost = [piece for piece in _without(self.lost, size, 1 << 62) if piece[0] < piece[1]]

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        self.data[position:end] = data
        self.dirty.append((position, end))
        self.lost = [piece for piece in _without(self.lost, position, end) if piece[0] < piece[1]]

    def synced(self) -> None:
        durable = bytearray(self.data)
        for start, end in self.lost:
            durable[start:end] = self.durable[start:end].ljust(end - start, b"\0")
        self.durable, self.dirty, self.shortest = bytes(durable), [], None

    def sync_failed(self) -> None:
        self.lost += self.dirty
        self.dirty = []

    def crash(self, survivors: Survivors) -> None:
        if survivors is Survivors.ALL:
            return  # it does not become durable by this
        if survivors is Survivors.CUT:
            self.durable = self.durable[: self.shortest]
        extra = len(self.data) - len(self.durable)
        if extra > 0 and survivors is Survivors.TORN:
            self.durable += self.data[len(self.durable) :][: extra // 2]
        elif extra > 0 and survivors is Survivors.ZEROS:
            self.durable += self.data[len(self.durable) :][: extra // 2].ljust(extra, b"\0")
        self.data = bytearray(self.durable)
        self.dirty, self.lost, self.shortest = [], [], None


def _without(ranges: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    pieces = []
    for low, high in ranges:
        pieces += [(low, min(high, start)), (max(low, end), high)]
    return pieces


class _Directory:
    def __init__(self) -> None:
        self.names: dict[str, _Content | _Directory] = {}
        self.durable: dict[str, _Content | _Directory] = {}

    def crash(self, names: Survivors, content: Survivors) -> None:
        if names is Survivors.TORN:
            # A rename is atomic on every file system: the file exists under its old name or its new one.
            renamed = {id(entry): name for name, entry in self.names.items() if name not in self.durable}
            survivors = {name: entry for name, entry in self.durable.items() if name in self.names}
            lost = [entry for name, entry in self.durable.items() if name not in self.names]
            self.durable = survivors | {renamed[id(entry)]: entry for entry in lost if id(entry) in renamed}
        if names is not Survivors.ALL:
            self.names = dict(self.durable)
        for entry in self.names.values():
            if isinstance(entry, _Directory):
                entry.crash(names, content)
            else:
                entry.crash(content)


class MemoryFile:
    __slots__ = ("_content", "_files", "path", "size")

    has_descriptor = False

    def __init__(self, files: "MemoryFiles", path: str, content: _Content) -> None:
        self.path = path
        self.size = len(content.data)
        self._files = files
        self._content = content

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._files.step("write", self.path)
        data = b"".join(buffers)
        self._content.write(self.size, data)
        self.size += len(data)

    def overwrite(self, position: int, data: Buffer) -> None:
        self._files.step("write", self.path)
        self._content.write(position, bytes(data))

    def is_cached(self, position: int, size: int) -> bool:
        return True

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._content.data[position : min(position + size, self.size)])

    def sync(self) -> None:
        self._files.sync_content(self.path, self._content)

    def truncate(self, size: int) -> None:
        self._files.step("write", self.path)
        self._content.truncate(size)
        self.size = size

    def pinned(self) -> AbstractContextManager[int]:
        raise NotImplementedError("a file in memory has no descriptor")

    def close(self) -> None:
        """There is no descriptor to close."""


class MemoryFiles:
    """A file system. ``steps`` counts the writes and syncs so far, at which it can stop or fail."""

    def __init__(self) -> None:
        self.steps = 0
        self.space = DiskSpace(0, 1 << 40)
        self._root = _Directory()
        self._mutex = threading.RLock()
        self._locked: set[str] = set()
        self._stop_at: int | None = None
        self._faults: dict[str, tuple[int, int]] = {}

    # For tests

    def stop_at(self, step: int) -> None:
        """The process dies at the ``step``-th write or sync from now on, before it takes effect."""
        self._stop_at = self.steps + step

    @property
    def is_stopped(self) -> bool:
        """Whether the process is dead, or dies with its next write or sync."""
        return self._stop_at is not None and self.steps + 1 >= self._stop_at

    def fail(self, kind: str, *, times: int = 1 << 62, error: int = errno.EIO) -> None:
        """The next writes or syncs raise StorageError, until ``heal``."""
        self._faults[kind] = (times, error)

    def heal(self) -> None:
        self._faults.clear()

    def crash(self, *, names: Survivors, content: Survivors) -> None:
        """Power cut and restart. Files opened before must not be used any more."""
        self._root.crash(names, content)
        self._stop_at = None
        self._locked.clear()

    def step(self, kind: str, path: str) -> None:
        with self._mutex:
            if self.is_stopped:
                raise Crashed(f"{kind} {path}")
            self.steps += 1
            times, error = self._faults.get(kind, (0, 0))
            if times > 0:
                self._faults[kind] = (times - 1, error)
                raise StorageError(f"{path}: {os.strerror(error)}") from OSError(error, os.strerror(error))

    # The Files protocol

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        directory, name = self._parent(path)
        if name not in directory.names and create:
            self.step("write", path)
            directory.names[name] = _Content()
        return MemoryFile(self, path, self._file(path))

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory(path).names)

    def make_directory(self, path: str) -> None:
        directory = self._root
        for name in _parts(path):
            if name not in directory.names:
                self.step("write", path)
                directory.names[name] = _Directory()
            entry = directory.names[name]
            if not isinstance(entry, _Directory):
                raise _no(path, errno.ENOTDIR)
            directory = entry

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def rename(self, old: str, new: str) -> None:
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        if old_name not in source.names:
            raise _no(old, errno.ENOENT)
        self.step("write", old)
        target.names[new_name] = source.names.pop(old_name)

    def rename_file(self, file: File, new: str) -> None:
        self.rename(file.path, new)
        file.path = new

    def remove(self, path: str) -> None:
        if self.exists(path):
            self.step("write", path)
            directory, name = self._parent(path)
            del directory.names[name]

    def remove_tree(self, path: str) -> None:
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self.step("sync", path)
        directory.durable = dict(directory.names)

    def sync_file(self, path: str) -> None:
        self.sync_content(path, self._file(path))

    def sync_content(self, path: str, content: _Content) -> None:
        try:
            self.step("sync", path)
        except StorageError:
            content.sync_failed()
            raise
        content.synced()

    def read_whole(self, path: str) -> bytes:
        return bytes(self._file(path).data)

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = self.open(path + ".tmp", create=True)
        temporary.truncate(0)
        temporary.append((data,))
        if sync:
            temporary.sync()
        self.rename(path + ".tmp", path)
        if sync:
            self.sync_directory(posixpath.dirname(path))

    def disk_space(self, path: str) -> DiskSpace:
        return self.space

    def lock(self, path: str) -> DirectoryLock | None:
        if path in self._locked:
            return None
        self._locked.add(path)
        return _MemoryLock(self._locked, path)

    def _find(self, path: str) -> _Content | _Directory | None:
        entry: _Content | _Directory | None = self._root
        for name in _parts(path):
            entry = entry.names.get(name) if isinstance(entry, _Directory) else None
        return entry

    def _file(self, path: str) -> _Content:
        entry = self._find(path)
        if not isinstance(entry, _Content):
            raise _no(path, errno.ENOENT if entry is None else errno.EISDIR)
        return entry

    def _directory(self, path: str) -> _Directory:
        entry = self._find(path)
        if not isinstance(entry, _Directory):
            raise _no(path, errno.ENOENT if entry is None else errno.ENOTDIR)
        return entry

    def _parent(self, path: str) -> tuple[_Directory, str]:
        return self._directory(posixpath.dirname(path)), posixpath.basename(path)


class _MemoryLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _no(path: str, error: int) -> StorageError:
    return StorageError(f"{path}: {os.strerror(error)}")
