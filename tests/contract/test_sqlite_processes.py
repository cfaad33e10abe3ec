"""Several processes on one SQLite file: what only this engine promises. The rest is in ``test_metadata_store.py``."""

import asyncio
import contextlib
import time

import pytest

from skep.metadata.sqlite import sqlite_sessions
from skep.metadata.sqlite.sqlite_sessions import (
    Heartbeat,
    SessionLock,
    SilenceDetector,
    is_alive,
    last_heartbeat,
    remove_session_file,
)
from tests.contract.conftest import in_event_loop, seen, told, vanished

INCREMENTS = 30
WRITER = f"""
    await store.put_ephemeral(f"brokers/{{__import__('os').getpid()}}", b"here")
    for _ in range({INCREMENTS}):
        while True:
            entry = await store.get("counter")
            try:
                await store.put("counter", b"%d" % (int(entry.value) + 1), expected_version=entry.version)
                break
            except VersionConflict:
                pass
    print("done")
    await asyncio.Event().wait()
"""


@in_event_loop
async def test_five_processes_that_write_at_once_lose_no_increment_and_their_deaths_are_noticed(sqlite_engine):
    async with sqlite_engine.session() as store:
        watch = await store.watch("brokers")
        await store.put("counter", b"0")
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(sqlite_engine.process(WRITER, 30.0)) for _ in range(5)]
            assert [await told(child) for child in children] == ["done"] * 5
            entry = await store.get("counter")
            assert entry is not None
            assert int(entry.value) == 5 * INCREMENTS
            assert len(await store.children("brokers")) == 5
            for child in children:
                child.kill()
                await vanished(store, watch, f"brokers/{child.pid}")
        assert await store.children("brokers") == []


EPHEMERAL = """
    await store.put_ephemeral("brokers/7", b"here")
    await asyncio.Event().wait()
"""


@in_event_loop
async def test_the_key_of_a_killed_process_is_gone_at_the_next_look_without_waiting_for_the_session_timeout(
    sqlite_engine,
):
    async with sqlite_engine.session() as store:
        watch = await store.watch("brokers")
        with sqlite_engine.process(EPHEMERAL, session_timeout_s=3600) as child:
            await seen(watch, {"brokers/7"})
            child.kill()
            await asyncio.to_thread(child.wait)
            await store.put_ephemeral("brokers/7", b"successor")


class Clock:
    """What ``time.monotonic`` says to ``sessions``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(sqlite_sessions, "time", self)

    def monotonic(self) -> float:
        return self.now


def look_for(watch, clock, seconds, **numbers):
    """Checks the same heartbeats repeatedly for some time. Returns the sessions that the last check found silent."""
    found = []
    for _ in range(round(seconds / 0.05)):
        clock.now += 0.05
        found = watch.silent({name: Heartbeat(number, timeout_s=6.0) for name, number in numbers.items()})
    return found


def test_a_session_is_silent_when_it_has_not_beaten_for_its_timeout(monkeypatch):
    clock = Clock(monkeypatch)
    watch = SilenceDetector()
    for half_second in range(20):
        silent = look_for(watch, clock, 0.5, stopped=1, beating=half_second)
        assert silent == (["stopped"] if half_second >= 12 else []), half_second


def test_a_watcher_that_was_stopped_itself_expires_no_session_when_it_resumes(monkeypatch):
    clock = Clock(monkeypatch)
    watch = SilenceDetector()
    assert look_for(watch, clock, 5.0, a=1, b=1) == []
    clock.now += 3600
    assert look_for(watch, clock, 5.9, a=1, b=2) == []
    assert look_for(watch, clock, 0.3, a=1, b=2) == ["a", "b"]


def test_a_session_that_lives_beats_and_is_not_silent(tmp_path):
    session = SessionLock(tmp_path, timeout_s=4.0)
    session.acquire(lambda name: None)
    try:
        watch, numbers = SilenceDetector(), set()
        deadline = time.monotonic() + 60
        while len(numbers) < 6 and time.monotonic() < deadline:
            beat = last_heartbeat(tmp_path, session.name)
            assert beat is not None
            assert beat.timeout_s == 4.0
            numbers.add(beat.number)
            assert watch.silent({session.name: beat}) == []
            time.sleep(0.01)
        assert len(numbers) >= 6
    finally:
        session.release()
    assert not is_alive(tmp_path, session.name)


@in_event_loop
async def test_a_session_that_others_expired_says_so_and_its_key_is_put_again(sqlite_engine, tmp_path):
    async with sqlite_engine.session() as store:
        await store.put_ephemeral("brokers/1", b"first")
        (session,) = (tmp_path / "metadata.db-sessions").iterdir()
        remove_session_file(session.parent, session.name)
        await store.wait_session_end()
        assert await store.get("brokers/1") is None
        await store.put_ephemeral("brokers/1", b"second")
        ended = asyncio.ensure_future(store.wait_session_end())
        entry = await store.get("brokers/1")
        assert entry is not None
        assert entry.value == b"second"
        assert not ended.done()
        ended.cancel()
