"""Who is alive: the sessions behind the ephemeral keys of a ``SqliteStore``.

Each session holds ``flock`` on a file of its own in one directory, and counts on in that file. It is dead

- when its lock can be had: the kernel drops the lock when the process ends, however it ends;
- when its file is gone: somebody saw the same count for a whole session timeout (``SilenceWatch``) and removed it.

So a process that dies is noticed at once, one that is stopped after the timeout. Removing the file is the verdict: it
holds for everybody, and the session that wakes up later finds by it that it was buried.

No clock is compared between processes. The timeout is measured by who watches, while it runs itself: after a pause of
its own it begins anew, so that a whole machine that was stopped wakes up without burying anybody.

``flock``, not POSIX record locks: it belongs to the open file, so two sessions in one process exclude each other, and
closing another descriptor of the file does not drop it.
"""

import fcntl
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

_BEAT = struct.Struct("<Qd")

BEATS_PER_TIMEOUT = 4
LONGEST_PAUSE_S = 0.1
"""How soon a session that was buried without having been stopped finds out."""


class Beat(NamedTuple):
    """The last sign of life of a session, counted from 0, and the timeout that it asked for."""

    number: int
    timeout_s: float


class SessionLock:
    """Our own session: alive from ``acquire`` to ``release``, or until somebody buries it. Errors are OSErrors.

    While it is alive a thread beats for it: sixteen bytes, never synced, every quarter of the timeout.
    """

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._descriptor = -1
        self._stopped = threading.Event()
        self._heart: threading.Thread | None = None
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"

    @property
    def is_buried(self) -> bool:
        return self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0

    def acquire(self, on_buried: Callable[[str], object]) -> None:
        """Take the lock; again, when it is held already, does nothing.

        ``on_buried`` is called with our name, on another thread.
        """
        if self._descriptor >= 0:
            return
        self._directory.mkdir(exist_ok=True)
        descriptor = os.open(self._directory / self.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, _BEAT.pack(0, self._timeout_s), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._heart = threading.Thread(target=self._beat, args=(on_buried,), name="metadata-session", daemon=True)
        self._heart.start()

    def release(self) -> None:
        if self._descriptor < 0:
            return
        self._stopped.set()
        if self._heart is not None and self._heart is not threading.current_thread():
            self._heart.join()
        forget(self._directory, self.name)
        os.close(self._descriptor)
        self._descriptor = -1

    def bury(self) -> None:
        """End the session from any thread; whoever acts for it finds it buried."""
        forget(self._directory, self.name)

    def _beat(self, on_buried: Callable[[str], object]) -> None:
        interval_s = self._timeout_s / BEATS_PER_TIMEOUT
        beats, due = 0, 0.0
        while not self._stopped.wait(min(interval_s, LONGEST_PAUSE_S)):
            if self.is_buried:
                on_buried(self.name)
                return
            if time.monotonic() >= due:
                due = time.monotonic() + interval_s
                beats += 1
                try:
                    os.pwrite(self._descriptor, _BEAT.pack(beats, self._timeout_s), 0)
                except OSError:
                    pass  # a full disk; the file has its one block, so the next beat or the one after succeeds


class SilenceWatch:
    """Finds the sessions that hold their lock and have not beaten for their timeout. For one thread.

    Between calls ``_since`` is, by session, its last beat and when we first saw that one.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}
        self._looked = time.monotonic()

    def silent(self, beats: Mapping[str, Beat]) -> list[str]:
        """Those to be buried, from the beats of all sessions; to be asked several times in a quarter of a timeout."""
        now = time.monotonic()
        pause_s, self._looked = now - self._looked, now
        before, self._since = self._since, {}
        for name, beat in beats.items():
            last_number, since = before.get(name, (-1, now))
            if beat.number != last_number or pause_s > beat.timeout_s / BEATS_PER_TIMEOUT:
                since = now
            self._since[name] = beat.number, since
        return [name for name, (_, since) in self._since.items() if now - since > beats[name].timeout_s]


def beat_of(directory: Path, name: str) -> Beat | None:
    """The last beat of a session; None when nobody holds it, or when it was buried."""
    try:
        descriptor = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Shared: two that look at the same time must not take each other for the session itself.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Beat._make(_BEAT.unpack(os.pread(descriptor, _BEAT.size, 0)))
    finally:
        os.close(descriptor)
    return None


def is_alive(directory: Path, name: str) -> bool:
    """Whether some process holds this session. One is named in the store only after it has its lock and has beaten."""
    return beat_of(directory, name) is not None


def forget(directory: Path, name: str) -> None:
    """Remove the file of a session: it is dead from now on, whoever holds the lock."""
    (directory / name).unlink(missing_ok=True)
