"""What is SQLite's own: durability settings, faults of the file, many at once. The rest is in tests/contract."""

import asyncio
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.metadata.sqlite import sqlite_tables
from skep.metadata.sqlite.sqlite_sessions import remove_session_file
from skep.metadata.sqlite.sqlite_store import SqliteStore


def pragma(store: SqliteStore, name: str) -> object:
    return store._tables._db.execute(f"PRAGMA {name}").fetchone()[0]


def test_each_commit_is_synced_to_the_write_ahead_log(tmp_path):
    async def scenario():
        store = SqliteStore(tmp_path / "m.db")
        await store.open()
        settings = [
            await store._call(lambda name=name: pragma(store, name)) for name in ("journal_mode", "synchronous")
        ]
        await store.close()
        return settings

    full = 2
    assert asyncio.run(scenario()) == ["wal", full]


def test_nobody_else_reads_the_file_which_has_the_keys_of_users(tmp_path):
    tables = sqlite_tables.SqliteTables(tmp_path / "m.db", busy_timeout_s=20)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()}
    tables.close()
    assert modes == {"m.db": 0o600, "m.db-wal": 0o600, "m.db-shm": 0o600}


def test_many_sessions_may_create_the_file_at_the_same_time(tmp_path):
    together = threading.Barrier(5)

    def open_and_close(path: Path) -> None:
        together.wait()
        sqlite_tables.SqliteTables(path, busy_timeout_s=20).close()

    with ThreadPoolExecutor(5) as threads:
        for attempt in range(30):
            list(threads.map(open_and_close, [tmp_path / f"{attempt}.db"] * 5))


def test_a_directory_that_does_not_exist_is_said_by_name(tmp_path):
    path = tmp_path / "missing" / "m.db"
    with pytest.raises(StoreUnavailable, match=r"missing/m\.db.*unable to open"):
        asyncio.run(SqliteStore(path).open())


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "m.db"
    path.write_bytes(b"a letter to grandmother\n" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        asyncio.run(SqliteStore(path).open())
    assert path.read_bytes().startswith(b"a letter")


def test_a_file_of_a_later_layout_is_refused_by_its_number(tmp_path):
    path = tmp_path / "m.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreUnavailable, match="has layout 99"):
        asyncio.run(SqliteStore(path).open())


def test_a_full_disk_refuses_the_write_serves_reads_and_heals(tmp_path):
    async def scenario():
        store = SqliteStore(tmp_path / "m.db")
        await store.open()
        version = await store.put("a", b"before")
        pages = await store._call(lambda: pragma(store, "page_count"))
        await store._call(lambda: pragma(store, f"max_page_count = {pages}"))
        with pytest.raises(StoreUnavailable, match="full"):
            await store.put("a", b"x" * 1_000_000, expected_version=version)
        assert await store.get("a") == (b"before", version)
        await store._call(lambda: pragma(store, "max_page_count = 1000000"))
        after = await store.put("a", b"x" * 1_000_000, expected_version=version)
        assert await store.get("a") == (b"x" * 1_000_000, after)
        await store.close()

    asyncio.run(scenario())


def test_a_writer_that_holds_the_lock_too_long_makes_the_store_unavailable_until_it_lets_go(tmp_path):
    async def scenario():
        store = SqliteStore(tmp_path / "m.db", busy_timeout_s=0.05)
        await store.open()
        hog = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
        hog.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.put("a", b"x")
        hog.execute("ROLLBACK")
        hog.close()
        assert await store.put("a", b"x")
        await store.close()

    asyncio.run(scenario())


def test_an_expired_session_is_reported_when_it_puts_an_ephemeral_key(tmp_path):
    async def scenario():
        frozen, other = SqliteStore(tmp_path / "m.db"), SqliteStore(tmp_path / "m.db")
        await frozen.open()
        await other.open()
        await frozen.put_ephemeral("brokers/1", b"x")
        remove_session_file(tmp_path / "m.db-sessions", frozen._tables._session.name)  # it was silent for too long
        await other.put_ephemeral("controller", b"other")
        # It resumes in the middle of this, before its own heartbeat thread knows.
        with pytest.raises(VersionConflict):
            await frozen.put_ephemeral("controller", b"frozen")
        await frozen.wait_session_end()
        assert await other.get("brokers/1") is None
        assert await frozen.put_ephemeral("brokers/1", b"again")
        await frozen.close()
        await other.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_watch_that_fell_behind_the_log_of_changes_is_told_that_it_missed_some(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_tables, "CHANGES_KEPT", 3)

    async def scenario():
        slow = SqliteStore(tmp_path / "m.db", poll_interval_s=3600)
        other = SqliteStore(tmp_path / "m.db")
        await slow.open()
        await other.open()
        watch = await slow.watch("")
        await slow.put("first", b"x")
        assert not (await anext(watch)).missed
        # The report that this put asks for may still be to come, and would see a part of the changes below.
        while slow._news.is_set():
            await asyncio.sleep(0)
        await slow.get("first")  # runs on the store's one thread, behind the report
        for number in range(5):
            await other.put(f"others/{number}", b"x")
        await slow.put("own", b"x")
        changed = await anext(watch)
        assert changed.missed
        assert "own" in changed.keys
        await other.close()
        await slow.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_watch_goes_on_after_the_store_could_not_answer_and_misses_nothing(tmp_path, monkeypatch, caplog):
    async def scenario():
        store = SqliteStore(tmp_path / "m.db", poll_interval_s=0.005)
        await store.open()
        watch = await store.watch("")
        failures = iter([sqlite3.OperationalError("disk I/O error")] * 3)
        asked = store._tables.changes_since

        def failing(seen):
            if (error := next(failures, None)) is not None:
                raise error
            return asked(seen)

        monkeypatch.setattr(store._tables, "changes_since", failing)
        await store.put("a", b"x")
        assert (await anext(watch)).keys == {"a"}
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert sum("disk I/O error" in record.message for record in caplog.records) == 1


def test_closing_leaves_no_file_of_the_session_behind(tmp_path):
    async def scenario():
        store = SqliteStore(tmp_path / "m.db")
        await store.open()
        await store.put_ephemeral("brokers/1", b"x")
        assert list((tmp_path / "m.db-sessions").iterdir())
        await store.close()
        assert not list((tmp_path / "m.db-sessions").iterdir())

    asyncio.run(scenario())
