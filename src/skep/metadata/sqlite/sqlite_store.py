"""A metadata store in one SQLite file, shared by the broker processes of one machine.

Durable: write-ahead log with ``synchronous=FULL``, so a put has returned only when it would survive a power cut.
Compare-and-set holds between processes: each write reads and decides under SQLite's write lock.

Others' changes and deaths are noticed within 50 ms while somebody watches (``sqlite_bell.py``), our own at once. Every
read first buries dead sessions (``sessions.py``), so none returns a key that outlived its process. A process that was
stopped for the session timeout counts as dead to whoever watches.

What no timeout can help: a process that is stopped within a transaction of a millisecond or two keeps SQLite's write
lock. Others' writes are then refused after ``busy_timeout_s``, until it goes on or dies.

All SQLite calls run on one thread of the store's own; the event loop never waits for the disk. The tables and the
transactions are in ``sqlite_tables.py``.
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

    Between calls ``_seen`` is the number of the last change that the watches were told of. While there are watches, a
    follower task runs and a bell wakes it.
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
        self._buried_session = ""
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
                on_buried=lambda session: loop.call_soon_threadsafe(self._buried, session),
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
        if session != self._buried_session:  # else it was buried even before we came back from the thread
            self._session_ended.clear()
        return version

    def _buried(self, session: str) -> None:
        self._buried_session = session
        self._session_ended.set()

    async def wait_session_end(self) -> None:
        await self._session_ended.wait()

    def end_session(self) -> None:
        if self._thread is not None:
            self._tables.end_session()

    async def delete(self, key: str, *, expected_version: int | None = None, keeps_version: bool = False) -> bool:
        # Versions are the numbers of changes here, and never repeat.
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
        """Faults of the disk and of the file become StoreUnavailable; misuse of SQLite stays what it is, our bug."""
        try:
            return work()
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.DatabaseError, OSError) as error:
            raise StoreUnavailable(f"metadata store {self.path}: {error}") from error

    async def _follow(self) -> None:
        """Tell the watches what changed, for as long as there are any."""
        loop = asyncio.get_running_loop()
        bell = self._tables.bell(self._poll_interval_s, lambda: loop.call_soon_threadsafe(self._news.set))
        bell.start()
        try:
            while self._watches:
                self._news.clear()
                await self._tell_watches()
                await self._news.wait()
                self._watches = [watch for watch in self._watches if not watch.closed]
        finally:
            bell.stop()
            bell.join()

    async def _tell_watches(self) -> None:
        try:
            self._seen, changed = await self._call(lambda: self._tables.changes_since(self._seen))
        except StoreUnavailable as error:
            # Going on loses nothing: the next question starts from the same number.
            if not self._failing:
                logger.error("%s; asking on until it answers", error)
            self._failing = True
            asyncio.get_running_loop().call_later(self._poll_interval_s, self._news.set)
            return
        self._failing = False
        if changed is not None:
            for watch in self._watches:
                watch.report(changed)
