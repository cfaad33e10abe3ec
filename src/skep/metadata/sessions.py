"""Who is alive, told by file locks: the sessions behind the ephemeral keys of a ``SqliteStore``.

Each session holds ``flock`` on a file of its own in one directory. The kernel drops the lock when the process ends,
however it ends, so a lock that can be had belongs to the dead: nothing to renew, nothing to time out, and a process
that is merely stopped stays alive.

``flock``, not POSIX record locks: it belongs to the open file, so two sessions in one process exclude each other, and
closing another descriptor of the file does not drop it.
"""

import fcntl
import os
import secrets
from pathlib import Path


class SessionLock:
    """Our own session: alive from ``acquire`` to ``release``. Errors are OSErrors."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"

    def acquire(self) -> None:
        """Take the lock; again, when it is held already, does nothing."""
        if self._descriptor >= 0:
            return
        self._directory.mkdir(exist_ok=True)
        descriptor = os.open(self._directory / self.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor < 0:
            return
        forget(self._directory, self.name)
        os.close(self._descriptor)
        self._descriptor = -1


def is_alive(directory: Path, name: str) -> bool:
    """Whether some process holds this session. A session is named in the store only after it holds its lock."""
    try:
        descriptor = os.open(directory / name, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared: two that look at the same time must not take each other for the session itself.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def forget(directory: Path, name: str) -> None:
    """Remove the file of a session that is dead or ending."""
    (directory / name).unlink(missing_ok=True)
