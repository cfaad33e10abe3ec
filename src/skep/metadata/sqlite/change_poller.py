"""A thread that notices when another process changed the SQLite file, died or stopped sending heartbeats.

It polls SQLite's ``data_version``, a number in shared memory, and the locks and heartbeats of the other sessions. None
of this accesses the disk. The thread only calls back, and removes the files of silent sessions. The callee reads what
changed and deletes the keys of dead sessions.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from skep.metadata.sqlite.sqlite_sessions import SilenceDetector, last_heartbeat, remove_session_file

logger = logging.getLogger(__name__)


class ChangePoller:
    """Calls ``on_change`` on its own thread from ``start`` until ``stop``, also whenever the file is unreadable."""

    def __init__(self, path: Path, sessions: Path, interval_s: float, on_change: Callable[[], object]) -> None:
        self._path = path
        self._sessions = sessions
        self._silence = SilenceDetector()
        self._interval_s = interval_s
        self._on_change = on_change
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metadata-poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        version, sessions = -1, list[str]()
        while not self._stopped.wait(self._interval_s):
            try:
                db = db or sqlite3.connect(self._path, isolation_level=None)
                (now,) = db.execute("PRAGMA data_version").fetchone()
                if now != version:
                    version, sessions = now, self._sessions_with_keys(db)
                    self._on_change()
                if self._has_dead_session(sessions):
                    self._on_change()
            except (sqlite3.Error, OSError):
                self._on_change()
        if db is not None:
            db.close()

    def _has_dead_session(self, sessions: list[str]) -> bool:
        # Our own session is among them: if only its heartbeat thread has stopped, this process must notice too.
        heartbeats = {session: last_heartbeat(self._sessions, session) for session in sessions}
        alive = {session: heartbeat for session, heartbeat in heartbeats.items() if heartbeat is not None}
        silent = self._silence.silent(alive)
        for session in silent:
            logger.warning(
                "metadata session %s is silent: its process is stopped or hangs; its keys will be deleted", session
            )
            remove_session_file(self._sessions, session)
        return bool(silent) or len(alive) < len(heartbeats)

    def _sessions_with_keys(self, db: sqlite3.Connection) -> list[str]:
        rows = db.execute("SELECT DISTINCT session FROM entries WHERE session IS NOT NULL")
        return [session for (session,) in rows]
