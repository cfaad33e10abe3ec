"""The sessions behind the ephemeral keys of a ``SqliteStore``: which of them are alive.

Each session holds ``flock`` on a file of its own in one directory, and increments a counter in that file: its
heartbeat. A session is dead

- if its lock can be taken: the kernel drops the lock when the process ends in any way;
- if its file is gone: another process saw the same count for a whole session timeout (``SilenceDetector``) and removed
  the file. The session is then *expired*.

So a process that dies is noticed at once, and one that is stopped after the timeout. Removing the file is the decision:
it holds for every process, and a session that resumes later learns from it that it has expired.

Clocks are not compared between processes. The watching process measures the timeout while it runs itself. After a pause
of its own it starts the measurement again, so that a whole machine that was stopped resumes without expired sessions.

``flock`` is used, not POSIX record locks: it belongs to the open file, so two sessions in one process exclude each
other, and closing another descriptor of the file does not drop it.
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

HEARTBEATS_PER_TIMEOUT = 4
LONGEST_PAUSE_S = 0.1
"""How soon a session that expired without having been stopped learns of it."""


class Heartbeat(NamedTuple):
    """The last heartbeat of a session, counted from 0, and the session's timeout."""

    number: int
    timeout_s: float


class SessionLock:
    """Our own session. It lives from ``acquire`` to ``release``, or until another process expires it. Raises OSError.

    While it lives, a thread writes a heartbeat every quarter of the timeout: sixteen bytes, never synced.
    """

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._descriptor = -1
        self._stopped = threading.Event()
        self._heartbeats: threading.Thread | None = None
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"

    @property
    def is_expired(self) -> bool:
        return self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0

    def acquire(self, on_expired: Callable[[str], object]) -> None:
        """Takes the lock. Does nothing if it is held already.

        ``on_expired`` is called with our name, on another thread.
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
        self._heartbeats = threading.Thread(
            target=self._send_heartbeats, args=(on_expired,), name="metadata-session", daemon=True
        )
        self._heartbeats.start()

    def release(self) -> None:
        if self._descriptor < 0:
            return
        self._stopped.set()
        if self._heartbeats is not None and self._heartbeats is not threading.current_thread():
            self._heartbeats.join()
        remove_session_file(self._directory, self.name)
        os.close(self._descriptor)
        self._descriptor = -1

    def expire(self) -> None:
        """Ends the session, from any thread. Its owner finds it expired."""
        remove_session_file(self._directory, self.name)

    def _send_heartbeats(self, on_expired: Callable[[str], object]) -> None:
        interval_s = self._timeout_s / HEARTBEATS_PER_TIMEOUT
        count, due = 0, 0.0
        while not self._stopped.wait(min(interval_s, LONGEST_PAUSE_S)):
            if self.is_expired:
                on_expired(self.name)
                return
            if time.monotonic() >= due:
                due = time.monotonic() + interval_s
                count += 1
                try:
                    os.pwrite(self._descriptor, _BEAT.pack(count, self._timeout_s), 0)
                except OSError:
                    pass  # the disk is full; the file has its block already, so one of the next heartbeats succeeds


class SilenceDetector:
    """Finds the sessions that hold their lock but sent no heartbeat for their timeout. For one thread.

    Between calls ``_since`` holds the last heartbeat of each session and when it was first seen.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}
        self._looked = time.monotonic()

    def silent(self, beats: Mapping[str, Heartbeat]) -> list[str]:
        """Returns the sessions to expire, by the heartbeats of all. Call it several times in a quarter of a timeout."""
        now = time.monotonic()
        pause_s, self._looked = now - self._looked, now
        before, self._since = self._since, {}
        for name, beat in beats.items():
            last_number, since = before.get(name, (-1, now))
            if beat.number != last_number or pause_s > beat.timeout_s / HEARTBEATS_PER_TIMEOUT:
                since = now
            self._since[name] = beat.number, since
        return [name for name, (_, since) in self._since.items() if now - since > beats[name].timeout_s]


def last_heartbeat(directory: Path, name: str) -> Heartbeat | None:
    """Returns the last heartbeat of a session, or None if no process holds its lock or it has expired."""
    try:
        descriptor = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Shared: two processes that check at the same time must not mistake each other for the session.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Heartbeat._make(_BEAT.unpack(os.pread(descriptor, _BEAT.size, 0)))
    finally:
        os.close(descriptor)
    return None


def is_alive(directory: Path, name: str) -> bool:
    """Returns whether a process holds this session. The store names one only after its lock and first heartbeat."""
    return last_heartbeat(directory, name) is not None


def remove_session_file(directory: Path, name: str) -> None:
    """Removes the file of a session. From now on it is dead, whoever holds the lock."""
    (directory / name).unlink(missing_ok=True)
