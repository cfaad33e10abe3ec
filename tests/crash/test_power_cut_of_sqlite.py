"""The metadata store on SQLite after a power cut: what a put has confirmed is there, and nothing else is half there.

The write-ahead log is on disk up to the last confirmed put, because each commit syncs it
(``tests/unit/metadata/sqlite`` checks the setting). Past that a power cut leaves anything: less of it, zeros, bytes of
something else. A checkpoint copies pages from the log to the database; until it has synced them, any of them may be
old or new.
"""

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from skep.metadata.sqlite.sqlite_tables import SqliteTables

PUTS = 12
PAGE = 4096


class Confirmed(NamedTuple):
    """The files and the state when a put returned."""

    database: bytes
    log: bytes
    state: dict[str, bytes]


def state_of(tables: SqliteTables) -> dict[str, bytes]:
    return {key: found.value for key, found in tables.read_tree("topics").items()}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> list[Confirmed]:
    """Puts of very different sizes, the same keys again and again, so that pages are overwritten."""
    path = tmp_path_factory.mktemp("store") / "m.db"
    tables, confirmed = SqliteTables(path, busy_timeout_s=1), []
    for number in range(PUTS):
        tables.put(f"topics/{number % 4}", bytes([number]) * (10 + 2_500 * (number % 3)), None)
        confirmed.append(Confirmed(path.read_bytes(), log_of(path).read_bytes(), state_of(tables)))
    tables.close()
    return confirmed


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def reopened(directory: Path, database: bytes, log: bytes) -> dict[str, bytes]:
    """The state that a broker finds which starts with these files."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    path = directory / "m.db"
    path.write_bytes(database)
    log_of(path).write_bytes(log)
    tables = SqliteTables(path, busy_timeout_s=1)
    try:
        return state_of(tables)
    finally:
        tables.close()


@pytest.mark.parametrize("number", range(PUTS - 1))
def test_the_end_of_the_log_may_be_anything_past_the_last_confirmed_put(
    history: list[Confirmed], tmp_path: Path, number: int
) -> None:
    chance = random.Random(number)
    before, after = history[number], history[number + 1]
    synced, written = len(before.log), len(after.log)
    assert written > synced, "the put is in the log"
    for _ in range(10):
        kept = chance.randrange(synced, written)
        tails = (b"", bytes(written - kept), chance.randbytes(written - kept))
        for tail in tails:
            assert reopened(tmp_path / "cut", after.database, after.log[:kept] + tail) == before.state
    assert reopened(tmp_path / "cut", after.database, after.log) == after.state


def test_a_confirmed_put_is_lost_when_the_log_is_cut_before_its_end(history: list[Confirmed], tmp_path: Path) -> None:
    """So that the tests around this one can fail: it is the synced log that keeps a put, nothing else does."""
    last = history[-1]
    assert reopened(tmp_path / "cut", last.database, last.log[:-1]) == history[-2].state != last.state


def test_a_checkpoint_that_is_cut_off_leaves_any_mix_of_old_and_new_pages(
    history: list[Confirmed], tmp_path: Path
) -> None:
    chance, last = random.Random(7), history[-1]
    path = tmp_path / "whole.db"
    path.write_bytes(last.database)
    log_of(path).write_bytes(last.log)
    tables = SqliteTables(path, busy_timeout_s=1)
    tables._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    new = path.read_bytes()
    tables.close()
    old = last.database.ljust(len(new), b"\0")
    assert old != new
    for _ in range(30):
        pages = [chance.choice((old, new))[at : at + PAGE] for at in range(0, len(new), PAGE)]
        assert reopened(tmp_path / "cut", b"".join(pages), last.log) == last.state
