"""One file of the operating system, and the pool that limits how many descriptors are open at once.

A file opens its descriptor at its first use and may lose it to another file: above ``max_open_files``, a file that was
not used lately is closed (the clock algorithm: a sweep clears the mark of use, and the next sweep that finds it still
clear closes the file). Two things keep a descriptor open: a pin (a thread or the socket is using it) and the file's own
lock, which an append holds. Without the lock, a thread that opens a file could close the one that the event loop is
writing to, and the number of its descriptor could belong to another file before the write reaches the kernel.

A read takes neither, because reading the wrong file does no harm if it is detected: the read compares the file's
generation, which changes when the descriptor is closed, before and after, and repeats with a pin if it has changed.
"""

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

from skep.base.errors import StorageError
from skep.base.files.files import Buffer, refused

_CLOSED = -1
_PAGE_BYTES = 4096


class OsFile:
    """One file. Between calls the bytes up to ``size`` are valid. With ``_has_rest``, invalid ones may follow them."""

    __slots__ = (
        "_descriptor",
        "_generation",
        "_has_rest",
        "_is_closing",
        "_lock",
        "_pins",
        "_pool",
        "_was_used",
        "path",
        "size",
    )

    has_descriptor = True

    def __init__(self, pool: "DescriptorPool", path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._pool = pool
        self._descriptor = _CLOSED
        self._generation = 0
        self._lock = threading.Lock()
        self._pins = 0
        self._was_used = False
        self._is_closing = False
        self._has_rest = False

    def append(self, buffers: Sequence[Buffer]) -> None:
        length = sum(map(len, buffers))
        with self._lock:
            self._was_used = True
            try:
                if self._descriptor == _CLOSED or self._has_rest:
                    self._make_ready()
                # At the known size, not at the end of the file: this overwrites what a failed append left there.
                written = os.pwritev(self._descriptor, buffers, self.size)
            except OSError as error:
                self._drop_rest()
                raise refused(self.path, error) from error
            if written != length:
                self._drop_rest()
                raise StorageError(f"{self.path}: only {written} of {length} bytes could be written")
            self.size += length

    def _make_ready(self) -> None:
        if self._descriptor == _CLOSED:
            self._pool.open_descriptor(self)
        if self._has_rest:
            os.ftruncate(self._descriptor, self.size)
            self._has_rest = False

    def _drop_rest(self) -> None:
        """Truncates what a failed write left. Also closes the descriptor, which may be a read-only one."""
        self._has_rest = True
        if self._descriptor != _CLOSED:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
                self._has_rest = False
            self._pool.close_unless_pinned(self)

    def overwrite(self, position: int, data: Buffer) -> None:
        with self.pinned() as descriptor:
            try:
                written = os.pwrite(descriptor, data, position)
            except OSError as error:
                raise refused(self.path, error) from error
        if written != len(data):
            raise StorageError(f"{self.path}: only {written} of {len(data)} bytes could be written again")

    def read(self, position: int, size: int) -> bytes:
        if position + size > self.size:
            # The kernel would also return what a failed append left after the end.
            size = max(self.size - position, 0)
        generation = self._generation
        if self._descriptor != _CLOSED:
            try:
                data = os.pread(self._descriptor, size, position)
                if generation == self._generation:
                    self._was_used = True
                    return data
            except OSError:
                pass  # retried below, with a descriptor that is known to be this file's
        with self.pinned() as descriptor:
            try:
                return os.pread(descriptor, size, position)
            except OSError as error:
                raise refused(self.path, error) from error

    def is_cached(self, position: int, size: int) -> bool:
        # Without a pin: if the descriptor belongs to another file by now, only the result is wrong.
        if self._descriptor == _CLOSED:
            with self.pinned():
                pass
        # Pages inside the ends, because finding the region has read the pages at both ends: the batch that it begins
        # with, and the header of the batch after it.
        margin = min(_PAGE_BYTES, size // 2)
        last = position + size - 1 - margin
        return _is_cached(self._descriptor, last) and (
            size <= 2 * _PAGE_BYTES or _is_cached(self._descriptor, position + margin)
        )

    def sync(self) -> None:
        with self.pinned() as descriptor:
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                raise refused(self.path, error) from error

    def truncate(self, size: int) -> None:
        with self._lock, self.pinned() as descriptor:
            try:
                os.ftruncate(descriptor, size)
            except OSError as error:
                raise refused(self.path, error) from error
            self.size = size

    def pinned(self) -> "_Pin":
        return _Pin(self)

    def close(self) -> None:
        with self._lock:
            self._pool.close_when_free(self)


class _Pin:
    """The result of ``pinned``. A generator would cost a fetch three microseconds more."""

    __slots__ = ("_file",)

    def __init__(self, file: OsFile) -> None:
        self._file = file

    def __enter__(self) -> int:
        return self._file._pool.pin(self._file)

    def __exit__(self, *_error: object) -> None:
        self._file._pool.unpin(self._file)


_probe = (bytearray(1),)


def _is_cached(descriptor: int, position: int) -> bool:
    try:
        os.preadv(descriptor, _probe, position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        # The file system does not support this, or there is an error that the read itself will report.
        return True
    return True


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        # A disk that became read-only can still be read.
        return os.open(path, os.O_RDONLY)


class DescriptorPool:
    """``mutex`` guards which files are open, their names and their pins. It is never held during a read or write."""

    def __init__(self, max_open_files: int) -> None:
        self.mutex = threading.RLock()
        self._max_open_files = max_open_files
        self._open: OrderedDict[OsFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open_descriptor(self, file: OsFile) -> None:
        """Opens the file's descriptor if it is closed. Raises OSError."""
        with self.mutex:
            if file._descriptor != _CLOSED:
                return
            self._make_room(self._max_open_files)
            try:
                file._descriptor = _open(file.path)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                # Sockets use up the process's descriptors: close one of our files for this one.
                self._make_room(len(self._open))
                file._descriptor = _open(file.path)
            file._was_used = True
            self._open[file] = None

    def pin(self, file: OsFile) -> int:
        with self.mutex:
            if file._descriptor == _CLOSED:
                try:
                    self.open_descriptor(file)
                except OSError as error:
                    raise refused(file.path, error) from error
            file._pins += 1
            file._was_used = True
            return file._descriptor

    def unpin(self, file: OsFile) -> None:
        with self.mutex:
            file._pins -= 1
            if file._is_closing and file._pins == 0:
                self.close_descriptor(file)

    def close_when_free(self, file: OsFile) -> None:
        with self.mutex:
            if file._pins:
                file._is_closing = True
            elif file._descriptor != _CLOSED:
                self.close_descriptor(file)

    def close_unless_pinned(self, file: OsFile) -> None:
        """Closes the descriptor now or not at all: after the last unpin, the next append may be writing to it."""
        with self.mutex:
            if file._pins == 0 and file._descriptor != _CLOSED:
                self.close_descriptor(file)

    def close_descriptor(self, file: OsFile) -> None:
        with self.mutex:
            file._generation += 1
            descriptor, file._descriptor = file._descriptor, _CLOSED
            file._is_closing = False
            self._open.pop(file, None)
            os.close(descriptor)

    def _make_room(self, limit: int) -> None:
        """Closes files until there are fewer than ``limit``, or none can be closed."""
        looks = 2 * len(self._open)
        while len(self._open) >= limit and looks:
            looks -= 1
            file = next(iter(self._open))
            if file._pins == 0 and not file._was_used and file._lock.acquire(blocking=False):
                self.close_descriptor(file)
                file._lock.release()
            else:
                file._was_used = False
                self._open.move_to_end(file)
