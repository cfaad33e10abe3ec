"""What waits in one held partition, by key and by due time: a SQLite file that is made from the log.

The log is authoritative. The file only avoids reading the whole log again: it has every record that waits, with its
value, and the position up to which the log was read. Changes and position are written in one transaction, so after a
kill the file is as it was at an earlier position, and after a power cut too (write-ahead log, synced before it is moved
into the file). A file that is damaged, or was made from another topic, is made anew.

Values are in the file because they are released in another order than they were written in: to read each from the log
again would mean to fetch and unpack a whole batch for it. Memory is bounded by SQLite's page cache, however many
records wait.
"""

import contextlib
import os
import sqlite3
import struct
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import NamedTuple

from skep.worker.held.plan import Header, Kind

FORMAT = 2
SUFFIX = ".held"
_CACHE_KIB = 16 << 10
_WAL_PAGES = 8_000
_LENGTHS = struct.Struct(">Ii")
_NULL = -1

_SCHEMA = """
CREATE TABLE held (offset INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, due INTEGER, kind INTEGER NOT NULL,
    timestamp INTEGER NOT NULL, headers BLOB NOT NULL, value BLOB, rate REAL);
CREATE INDEX by_due ON held (due) WHERE due IS NOT NULL;
CREATE INDEX by_rate ON held (rate) WHERE rate IS NOT NULL;
CREATE TABLE about (identity TEXT NOT NULL, next_offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL,
    caught_up_ms INTEGER NOT NULL);
"""


class Entry(NamedTuple):
    """A record that waits. ``due_ms`` is None if it has no due time: a half message, or an invalid record.

    ``rate`` is how often a schedule that has fired before fires, a second; 0 for anything else.
    """

    offset: int
    key: bytes
    due_ms: int | None
    kind: Kind
    timestamp_ms: int
    headers: tuple[Header, ...]
    value: bytes | None
    rate: float = 0.0


class Position(NamedTuple):
    """How far the log is known: everything before ``next_offset``, whose last record had ``leader_epoch``.

    At ``caught_up_ms`` there was nothing behind it.
    """

    next_offset: int = 0
    leader_epoch: int = -1
    caught_up_ms: int = 0


class HeldIndex:
    """Owns the file. One thread at a time."""

    def __init__(self, path: str, identity: str) -> None:
        """``identity`` names the partition by its topic's id, and how the file was made."""
        self._path = path
        self._identity = f"{identity} {FORMAT}"
        try:
            self._database = self._opened()
        except sqlite3.DatabaseError:
            self.clear()

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
            database.execute(f"PRAGMA journal_size_limit = {_WAL_PAGES * 4096}")
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                database.execute("INSERT INTO about VALUES (?, 0, -1, 0)", (self._identity,))
            identity, *position = database.execute("SELECT * FROM about").fetchone() or ("",)
            if identity != self._identity:
                raise sqlite3.DatabaseError("made from another log")
        except BaseException:
            database.close()
            raise
        self.position = Position(*position)
        return database

    def clear(self) -> None:
        """Removes everything and begins with an empty file."""
        with contextlib.suppress(AttributeError, sqlite3.Error):
            self._database.close()
        remove_index(self._path)
        self._database = self._opened()

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    # Reading.

    def get(self, key: bytes) -> Entry | None:
        row = self._database.execute("SELECT * FROM held WHERE key = ?", (key,)).fetchone()
        return None if row is None else _entry(row)

    def next_due(self) -> int | None:
        """Returns the earliest due time of all."""
        found: tuple[int | None] = self._database.execute("SELECT min(due) FROM held WHERE due IS NOT NULL").fetchone()
        return found[0]

    def due(
        self, now_ms: int, most: int, most_bytes: int, is_left_out: Callable[[bytes], bool] = lambda key: False
    ) -> list[Entry]:
        """Returns what is due, the earliest first: at least one, then no more than these. Some keys are left out."""
        found: list[Entry] = []
        size = 0
        rows = self._database.execute("SELECT * FROM held WHERE due <= ? ORDER BY due", (now_ms,))
        for row in rows:
            if is_left_out(row[1]):
                continue
            size += len(row[1]) + len(row[5]) + len(row[6] or b"")
            if found and size > most_bytes:
                break
            found.append(_entry(row))
            if len(found) == most:
                break
        rows.close()
        return found

    def waiting(self, most: int) -> list[Entry]:
        """Returns what waits, the earliest first, and last the records without a due time."""
        rows = self._database.execute("SELECT * FROM held ORDER BY due IS NULL, due, offset LIMIT ?", (most,))
        return [_entry(row) for row in rows]

    def rate(self) -> float:
        """Returns how often all schedules that have fired before fire together, a second."""
        total: tuple[float] = self._database.execute("SELECT total(rate) FROM held WHERE rate IS NOT NULL").fetchone()
        return total[0]

    def count(self) -> int:
        count: tuple[int] = self._database.execute("SELECT count(*) FROM held").fetchone()
        return count[0]

    # Changes.

    def apply(self, changes: Mapping[bytes, Entry | None], position: Position) -> None:
        """Sets what waits under these keys, None for nothing, as of ``position``."""
        with self._transaction():
            gone = [(key,) for key, entry in changes.items() if entry is None]
            if gone:
                self._database.executemany("DELETE FROM held WHERE key = ?", gone)
            # REPLACE also removes what had the key before.
            self._database.executemany(
                "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [_row(entry) for entry in changes.values() if entry is not None],
            )
            self._database.execute("UPDATE about SET next_offset = ?, leader_epoch = ?, caught_up_ms = ?", position)
        self.position = position

    def remove(self, offsets: Iterable[int]) -> None:
        """Removes released records. Their tombstones are in the log after the position."""
        with self._transaction():
            self._database.executemany("DELETE FROM held WHERE offset = ?", [(offset,) for offset in offsets])

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        self._database.execute("BEGIN")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise


def remove_index(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(name)


def _row(entry: Entry) -> tuple[object, ...]:
    headers = encode_headers(entry.headers)
    return (*entry[:3], int(entry.kind), entry.timestamp_ms, headers, entry.value, entry.rate or None)


def _entry(row: tuple[int, bytes, int | None, int, int, bytes, bytes | None, float | None]) -> Entry:
    offset, key, due_ms, kind, timestamp_ms, headers, value, rate = row
    return Entry(offset, key, due_ms, Kind(kind), timestamp_ms, decode_headers(headers), value, rate or 0.0)


def encode_headers(headers: Iterable[Header]) -> bytes:
    parts = []
    for name, value in headers:
        text = name.encode(errors="surrogatepass")
        parts += [_LENGTHS.pack(len(text), _NULL if value is None else len(value)), text, value or b""]
    return b"".join(parts)


def decode_headers(data: bytes) -> tuple[Header, ...]:
    headers: list[Header] = []
    position = 0
    while position < len(data):
        name_length, value_length = _LENGTHS.unpack_from(data, position)
        middle = position + _LENGTHS.size + name_length
        name = data[position + _LENGTHS.size : middle].decode(errors="surrogatepass")
        position = middle + max(0, value_length)
        headers.append((name, None if value_length == _NULL else data[middle:position]))
    return tuple(headers)
