"""A metadata store in one SQLite file, shared by the broker processes of one machine.

Writes are durable: with a write-ahead log and ``synchronous=FULL``, a put returns only when it would survive a power
cut. Compare-and-set works between processes: each write reads and decides under SQLite's write lock.

While there are watches, changes and deaths of other processes are noticed within 50 ms (``change_poller.py``), and our
own changes at once. Every read first removes the keys of dead sessions (``sqlite_sessions.py``), so no read returns a
key of a dead process. A process that was stopped for the session timeout counts as dead.

No timeout covers this case: a process that is stopped inside a transaction of a millisecond or two keeps SQLite's write
lock. The writes of others are then refused after ``busy_timeout_s`` until it resumes or dies.

All SQLite calls run on one thread of the store, so the event loop never waits for the disk. The tables and transactions
are in ``sqlite_tables.py``.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.base.loop.supervisor import Supervisor
from skep.metadata.metadata_store import SESSION_TIMEOUT_S, Put, Versioned, Watch
from skep.metadata.sqlite.sqlite_tables import SqliteTables

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.05

R = TypeVar("R")


class SqliteStore:
    """A ``MetadataStore``. Owns the thread, and the connection and session that live on it.

    Between calls ``_seen`` is the number of the last change that was reported to watches. While there are watches, a
    follower task runs, and a ``ChangePoller`` wakes it.
    """

    def __init__(
        self,
        path: Path,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        poll_interval_s: float = POLL_INTERVAL_S,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self.path = path
        self._session_timeout_s = session_timeout_s
        self._poll_interval_s = poll_interval_s
        self._busy_timeout_s = busy_timeout_s
        self._thread: ThreadPoolExecutor | None = None
        self._tables: SqliteTables  # from open to close
        self._watches: list[Watch] = []
        self._follower: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._session_ended = asyncio.Event()
        self._expired_session = ""
        self._seen = 0
        self._failing = False
        self._tasks = Supervisor()

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        loop = asyncio.get_running_loop()

        def make_tables() -> SqliteTables:
            return SqliteTables(
                self.path,
                busy_timeout_s=self._busy_timeout_s,
                session_timeout_s=self._session_timeout_s,
                on_expired=lambda session: loop.call_soon_threadsafe(self._expired, session),
            )

        try:
            self._tables = await self._call(make_tables)
        except BaseException:
            self._end_thread()
            raise

    async def close(self) -> None:
        if self._thread is None:
            return
        for watch in self._watches:
            watch.close()
        await self._tasks.close()
        self._watches.clear()
        try:
            await self._call(self._tables.close)
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        self._thread = None

    async def get(self, key: str) -> Versioned | None:
        return await self._call(lambda: self._tables.get(key))

    async def put(self, key: str, value: bytes, *, expected_version: int | None = None) -> int:
        return await self._write(lambda: self._tables.put(key, value, expected_version))

    async def put_many(
        self, entries: Sequence[Put], *, guard: tuple[str, int] | None = None
    ) -> list[int | VersionConflict]:
        return await self._write(lambda: self._tables.put_many(entries, guard))

    async def put_ephemeral(self, key: str, value: bytes) -> int:
        version, session = await self._write(lambda: self._tables.put_ephemeral(key, value))
        if session != self._expired_session:  # otherwise it expired before the thread's result arrived
            self._session_ended.clear()
        return version

    def _expired(self, session: str) -> None:
        self._expired_session = session
        self._session_ended.set()

    async def wait_session_end(self) -> None:
        await self._session_ended.wait()

    def end_session(self) -> None:
        if self._thread is not None:
            self._tables.end_session()

    async def delete(self, key: str, *, expected_version: int | None = None, keeps_version: bool = False) -> bool:
        # Versions are numbers of changes here and never repeat, so ``keeps_version`` needs nothing.
        return await self._write(lambda: self._tables.delete(key, expected_version))

    async def children(self, key: str) -> list[str]:
        below = await self._call(lambda: self._tables.keys_below(key))
        start = len(key) + 1 if key else 0
        return sorted({path[start:].split("/", 1)[0] for path in below})

    async def read_tree(self, prefix: str) -> dict[str, Versioned]:
        return await self._call(lambda: self._tables.read_tree(prefix))

    async def watch(self, prefix: str) -> Watch:
        newest = await self._call(lambda: self._tables.newest_change())
        watch = Watch(prefix, on_close=self._news.set)
        self._watches.append(watch)
        if self._follower is None or self._follower.done():
            self._seen = newest
            self._follower = self._tasks.spawn("metadata-watch", self._follow())
        return watch

    async def _call(self, work: Callable[[], R]) -> R:
        if self._thread is None:
            raise StoreUnavailable(f"metadata store {self.path} is not open")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    async def _write(self, work: Callable[[], R]) -> R:
        result = await self._call(work)
        self._news.set()
        return result

    def _guarded(self, work: Callable[[], R]) -> R:
        """Converts errors of the disk and the file to StoreUnavailable. Misuse of SQLite, a bug, is raised as is."""
        try:
            return work()
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.DatabaseError, OSError) as error:
            raise StoreUnavailable(f"metadata store {self.path}: {error}") from error

    async def _follow(self) -> None:
        """Reports changes to the watches for as long as there are any."""
        loop = asyncio.get_running_loop()
        poller = self._tables.poller(self._poll_interval_s, lambda: loop.call_soon_threadsafe(self._news.set))
        poller.start()
        try:
            while self._watches:
                self._news.clear()
                await self._report_changes()
                await self._news.wait()
                self._watches = [watch for watch in self._watches if not watch.closed]
        finally:
            poller.stop()
            poller.join()

    async def _report_changes(self) -> None:
        try:
            self._seen, changed = await self._call(lambda: self._tables.changes_since(self._seen))
        except StoreUnavailable as error:
            # Nothing is lost: the next query starts from the same number.
            if not self._failing:
                logger.error("%s; retrying until it responds", error)
            self._failing = True
            asyncio.get_running_loop().call_later(self._poll_interval_s, self._news.set)
            return
        self._failing = False
        if changed is not None:
            for watch in self._watches:
                watch.report(changed)
