"""A thread that notices when another process changed the SQLite file, or died.

It asks SQLite for ``data_version``, a number kept in shared memory, and tries the locks of the other sessions; neither
touches the disk. At 20 times a second that is a third of a percent of a core, most of it waking up. It only rings:
what changed is read by whoever is rung.
"""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from skep.metadata.sessions import is_alive


class Bell:
    """Calls ``ring``, on its own thread, from ``start`` until ``stop``; also whenever it finds the file unreadable."""

    def __init__(
        self, path: Path, sessions: Path, own_session: str, interval_s: float, ring: Callable[[], object]
    ) -> None:
        self._path = path
        self._sessions = sessions
        self._own_session = own_session
        self._interval_s = interval_s
        self._ring = ring
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metadata-bell", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        version, others = -1, list[str]()
        while not self._stopped.wait(self._interval_s):
            try:
                db = db or sqlite3.connect(self._path, isolation_level=None)
                (now,) = db.execute("PRAGMA data_version").fetchone()
                if now != version:
                    version, others = now, self._other_sessions(db)
                    self._ring()
                elif not all(is_alive(self._sessions, session) for session in others):
                    self._ring()
            except (sqlite3.Error, OSError):
                self._ring()
        if db is not None:
            db.close()

    def _other_sessions(self, db: sqlite3.Connection) -> list[str]:
        rows = db.execute("SELECT DISTINCT session FROM entries WHERE session IS NOT NULL")
        return [session for (session,) in rows if session != self._own_session]
