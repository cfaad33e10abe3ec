"""A thread that notices when another process changed the SQLite file, died or fell silent.

It asks SQLite for ``data_version``, a number kept in shared memory, and looks at the locks and beats of the other
sessions; none of it touches the disk. It only rings, and removes the files of the silent: what changed is read, and
the dead are buried, by whoever is rung.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from skep.metadata.sqlite.sqlite_sessions import SilenceWatch, beat_of, forget

logger = logging.getLogger(__name__)


class Bell:
    """Calls ``ring``, on its own thread, from ``start`` until ``stop``; also whenever it finds the file unreadable."""

    def __init__(self, path: Path, sessions: Path, interval_s: float, ring: Callable[[], object]) -> None:
        self._path = path
        self._sessions = sessions
        self._silence = SilenceWatch()
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
        version, sessions = -1, list[str]()
        while not self._stopped.wait(self._interval_s):
            try:
                db = db or sqlite3.connect(self._path, isolation_level=None)
                (now,) = db.execute("PRAGMA data_version").fetchone()
                if now != version:
                    version, sessions = now, self._sessions_with_keys(db)
                    self._ring()
                if self._someone_is_gone(sessions):
                    self._ring()
            except (sqlite3.Error, OSError):
                self._ring()
        if db is not None:
            db.close()

    def _someone_is_gone(self, sessions: list[str]) -> bool:
        # Our own is among them: should its heart alone have stopped, the others must not be the only ones who see it.
        beats = {session: beat_of(self._sessions, session) for session in sessions}
        alive = {session: beat for session, beat in beats.items() if beat is not None}
        silent = self._silence.silent(alive)
        for session in silent:
            logger.warning("metadata session %s is silent: its process is stopped or hangs, and its keys go", session)
            forget(self._sessions, session)
        return bool(silent) or len(alive) < len(beats)

    def _sessions_with_keys(self, db: sqlite3.Connection) -> list[str]:
        rows = db.execute("SELECT DISTINCT session FROM entries WHERE session IS NOT NULL")
        return [session for (session,) in rows]
