"""The blocking half of ``SqliteStore``: the tables, and each operation as one transaction on them.

``changes`` is a log of the written keys, numbered without gaps. The number is the version of the key, so versions never
repeat, not even after a delete. A watch reads the changes after the last number that it has seen. Only the newest
entries are kept: number 1 is deleted when 10,001 is written, and a watch that had seen none gets ``missed``.
"""

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from skep.base.errors import Fenced, StoreUnavailable, VersionConflict
from skep.metadata.metadata_store import (
    MUST_NOT_EXIST,
    SESSION_TIMEOUT_S,
    Changed,
    Put,
    Versioned,
    check_entries,
    check_entry,
)
from skep.metadata.sqlite.change_poller import ChangePoller
from skep.metadata.sqlite.sqlite_sessions import SessionLock, is_alive, remove_session_file

SCHEMA_VERSION = 1
SCHEMA = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session TEXT)",
    "CREATE INDEX ephemeral ON entries (session) WHERE session IS NOT NULL",
    "CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
CHANGES_KEPT = 10_000
RETRY_PAUSE_S = 0.0005, 0.0015


class SqliteTables:
    """Owns one connection and one session; used by one thread. Between calls no transaction is open.

    Raises ``sqlite3.Error`` and ``OSError``; ``SqliteStore`` converts them.
    """

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_s: float,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        on_expired: Callable[[str], object] = lambda session: None,
    ) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._session_timeout_s = session_timeout_s
        self._on_buried = on_expired
        self._sessions = path.with_name(path.name + "-sessions")
        self._session = SessionLock(self._sessions, session_timeout_s)
        _create_for_owner_only(path)
        self._db = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._use_write_ahead_log()
        # FULL syncs the log at each commit. NORMAL, common with this log, could lose the last commits in a power cut.
        self._db.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found == 0:
                for statement in SCHEMA:
                    self._db.execute(statement)
            elif found != SCHEMA_VERSION:
                raise StoreUnavailable(
                    f"metadata store {self._path} has layout {found}; this version of Skep reads {SCHEMA_VERSION}"
                )

    def _use_write_ahead_log(self) -> None:
        # When two processes create the file at once, SQLite returns "locked" here without its busy timeout.
        self._retry_while_busy("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        try:
            # On a full disk this fails. Other processes then delete the keys when the lock is released.
            with contextlib.suppress(sqlite3.OperationalError):
                self._delete_session(self._session.name)
        finally:
            self._session.release()
            self._db.close()

    def get(self, key: str) -> Versioned | None:
        self._expire_dead_sessions()
        row = self._db.execute("SELECT value, version FROM entries WHERE key = ?", (key,)).fetchone()
        return Versioned(*row) if row else None

    def read_tree(self, prefix: str) -> dict[str, Versioned]:
        self._expire_dead_sessions()
        rows = self._db.execute(f"SELECT key, value, version FROM entries {_under(prefix)}", _bounds(prefix))
        return {key: Versioned(value, version) for key, value, version in rows}

    def keys_below(self, prefix: str) -> list[str]:
        self._expire_dead_sessions()
        rows = self._db.execute(f"SELECT key FROM entries {_under(prefix)}", _bounds(prefix))
        return [key for (key,) in rows if key != prefix]

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        check_entry(key, value)
        self._expire_dead_sessions()
        with self._transaction():
            number = self._put(key, value, expected_version)
            self._trim_changes(number)
        return number

    def put_many(self, entries: Sequence[Put], guard: tuple[str, int] | None) -> list[int | VersionConflict]:
        check_entries(entries)
        self._expire_dead_sessions()
        results: list[int | VersionConflict] = []
        with self._transaction():
            if guard is not None and self._version_of(guard[0]) != guard[1]:
                raise Fenced(f"{guard[0]} is no longer at version {guard[1]}")
            for entry in entries:
                try:
                    results.append(self._put(*entry))
                except VersionConflict as conflict:
                    results.append(conflict)
            self._trim_changes(max((result for result in results if isinstance(result, int)), default=0))
        return results

    def _put(self, key: str, value: bytes, expected_version: int | None) -> int:
        self._expect(key, expected_version)
        number = self._log_change(key)
        self._db.execute(
            "INSERT INTO entries (key, value, version) VALUES (?, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version",
            (key, value, number),
        )
        return number

    def put_ephemeral(self, key: str, value: bytes) -> tuple[int, str]:
        """Returns the new version, and the session that the key belongs to."""
        check_entry(key, value)
        if self._session.is_expired:
            # Its heartbeat thread may not know yet; release() ends it.
            self._on_buried(self._session.name)
            self._session.release()
            self._session = SessionLock(self._sessions, self._session_timeout_s)
        # The lock is taken before the row names it: a row whose session is locked always belongs to a live session.
        self._session.acquire(self._on_buried)
        self._expire_dead_sessions()
        with self._transaction():
            self._expect(key, MUST_NOT_EXIST)
            number = self._log_change(key)
            self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (key, value, number, self._session.name))
            self._trim_changes(number)
        return number, self._session.name

    def delete(self, key: str, expected_version: int | None) -> bool:
        self._expire_dead_sessions()
        with self._transaction():
            found = self._expect(key, expected_version)
            if found:
                self._trim_changes(self._delete_row(key))
        return found != MUST_NOT_EXIST

    def newest_change(self) -> int:
        (number,) = self._db.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()
        return int(number)

    def changes_since(self, seen: int) -> tuple[int, Changed | None]:
        """Returns the newest change's number, and the keys that any process wrote after number ``seen``."""
        self._expire_dead_sessions()
        rows = self._db.execute("SELECT number, key FROM changes WHERE number > ? ORDER BY number", (seen,)).fetchall()
        if not rows:
            return seen, None
        return rows[-1][0], Changed(frozenset(key for _, key in rows), missed=rows[0][0] != seen + 1)

    def poller(self, interval_s: float, on_change: Callable[[], object]) -> ChangePoller:
        """Returns a poller, not started, that calls back when another process changed the tables or died."""
        return ChangePoller(self._path, self._sessions, interval_s, on_change)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Holds the write lock from the first statement on: what is read inside is unchanged at the commit."""
        self._begin()
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # after some errors SQLite has rolled back itself
                self._db.execute("ROLLBACK")
            raise

    def _begin(self) -> None:
        # Retried here and not by SQLite, which sleeps longer each time, up to 100 ms. Among five processes that wrote
        # without a pause, one waited for three seconds.
        self._db.execute("PRAGMA busy_timeout = 0")
        try:
            self._retry_while_busy("BEGIN IMMEDIATE")
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout_s * 1000)}")

    def _retry_while_busy(self, statement: str) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                self._db.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(*RETRY_PAUSE_S))

    def _version_of(self, key: str) -> int:
        row = self._db.execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else MUST_NOT_EXIST

    def _expect(self, key: str, expected_version: int | None) -> int:
        found = self._version_of(key)
        if expected_version is not None and expected_version != found:
            raise VersionConflict(f"{key} is at version {found}, not {expected_version}")
        return found

    def _log_change(self, key: str) -> int:
        number = self._db.execute("INSERT INTO changes (key) VALUES (?)", (key,)).lastrowid
        assert number is not None
        return number

    def _trim_changes(self, newest: int) -> None:
        self._db.execute("DELETE FROM changes WHERE number <= ?", (newest - CHANGES_KEPT,))

    def _delete_row(self, key: str) -> int:
        number = self._log_change(key)
        self._db.execute("DELETE FROM entries WHERE key = ?", (key,))
        return number

    def _expire_dead_sessions(self) -> None:
        """Removes the ephemeral keys of dead sessions."""
        rows = self._db.execute("SELECT DISTINCT session FROM entries WHERE session IS NOT NULL").fetchall()
        for (session,) in rows:
            # Our own session too, if another process expired it; that check opens no file, which may be gone.
            is_ours = session == self._session.name
            if self._session.is_expired if is_ours else not is_alive(self._sessions, session):
                self._delete_session(session)
                remove_session_file(self._sessions, session)

    def end_session(self) -> None:
        """Ends the session, from any thread."""
        self._session.expire()

    def _delete_session(self, session: str) -> None:
        keys = self._db.execute("SELECT key FROM entries WHERE session = ?", (session,)).fetchall()
        if keys:
            with self._transaction():
                for (key,) in keys:
                    self._delete_row(key)


def _under(prefix: str) -> str:
    return "WHERE key = :prefix OR (key > :low AND key < :high)" if prefix else ""


def _bounds(prefix: str) -> dict[str, str]:
    # "0" is the character after "/": the keys below "a" are those between "a/" and "a0".
    return {"prefix": prefix, "low": f"{prefix}/", "high": f"{prefix}0"}


def _create_for_owner_only(path: Path) -> None:
    """Creates the file as SQLite would, but for its owner alone: it has the keys of users. SQLite's -wal and -shm get
    the same mode. The mode of a file that exists is left as it is, for those who let a group read it."""
    with contextlib.suppress(OSError):  # SQLite reports what is wrong with the path
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
