"""The file system of the operating system. The files themselves are in ``os_file.py``."""

import fcntl
import os
import shutil

from skep.base.errors import StorageError
from skep.base.files.files import DirectoryLock, DiskSpace, File, refused
from skep.base.files.os_file import DescriptorPool, OsFile

DIRECTORY_MODE = 0o750
"""Other users of the machine have no business with records."""


class OsFiles:
    """The file system. At most ``max_open_files`` of its files have a descriptor at a time."""

    def __init__(self, max_open_files: int = 1024) -> None:
        self._pool = DescriptorPool(max_open_files)

    @property
    def open_count(self) -> int:
        return len(self._pool)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        try:
            if create:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            return OsFile(self._pool, path, os.stat(path).st_size)
        except OSError as error:
            raise refused(path, error) from error

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise refused(path, error) from error

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise refused(path, error) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise refused(path, error) from error

    def rename(self, old: str, new: str) -> None:
        try:
            os.replace(old, new)
        except OSError as error:
            raise refused(old, error) from error

    def rename_file(self, file: File, new: str) -> None:
        # Under the mutex, because a reader may be about to open the file under its old name.
        with self._pool.mutex:
            self.rename(file.path, new)
            file.path = new

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise refused(path, error) from error

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise refused(path, error) from error

    def sync_directory(self, path: str) -> None:
        self._sync_path(path, os.O_RDONLY | os.O_DIRECTORY)

    def sync_file(self, path: str) -> None:
        self._sync_path(path, os.O_RDONLY)

    def _sync_path(self, path: str, flags: int) -> None:
        try:
            descriptor = os.open(path, flags)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise refused(path, error) from error

    def read_whole(self, path: str) -> bytes:
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except OSError as error:
            raise refused(path, error) from error

    def write_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb", buffering=0) as stream:
                if stream.write(data) != len(data):
                    raise StorageError(f"{temporary}: not all bytes could be written")
                if sync:
                    os.fsync(stream.fileno())
            os.replace(temporary, path)
        except OSError as error:
            raise refused(path, error) from error
        if sync:
            self.sync_directory(os.path.dirname(path) or ".")

    def disk_space(self, path: str) -> DiskSpace:
        try:
            disk = os.statvfs(path)
        except OSError as error:
            raise refused(path, error) from error
        used = disk.f_blocks - disk.f_bfree
        return DiskSpace(used * disk.f_frsize, (used + disk.f_bavail) * disk.f_frsize)

    def lock(self, path: str) -> DirectoryLock | None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise refused(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return _OsLock(descriptor)


class _OsLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Releases the lock. The kernel releases it too when the process dies."""
        os.close(self._descriptor)
