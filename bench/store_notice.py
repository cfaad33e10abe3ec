"""Rows store-notice, store-idle: the SQLite store between processes, how soon a change is heard of, what waiting costs.

``store-notice``: one process writes, with the time in it, another has a watch; the longest of the delays. Both use the
machine's clock. ``store-idle``: the CPU of a process that has a session and a watch and hears nothing.
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.row import Row, spread
from skep.metadata.sqlite.sqlite_store import SqliteStore

NAMES = ("store-notice", "store-idle")

CHANGES = 40
PAUSE_S = 0.23
"""No multiple of the interval at which the store looks."""
IDLE_S = 10.0
FILE = "metadata.sqlite"


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        delays = asyncio.run(_delays(Path(directory)))
        percentage = asyncio.run(_idle_percentage(Path(directory)))
    yield Row(
        "store-notice",
        f"milliseconds until another process hears of a change, the longest of {CHANGES}",
        100.0,
        "at most",
        max(delays),
        f"median {statistics.median(delays):.0f} ms, longest {max(delays):.0f} ms",
        unit="ms",
        details={"ours": spread(delays, 1)},
    )
    yield Row(
        "store-idle",
        "CPU of a process with a session and a watch while nothing happens, in percent of a core",
        None,
        "at most",
        percentage,
        f"{percentage:.2f} %",
        unit="%",
    )


async def _delays(directory: Path) -> list[float]:
    store = SqliteStore(directory / FILE)
    await store.open()
    watch = await store.watch("")
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(str(directory),))
    writer.start()
    delays: list[float] = []
    try:
        while len(delays) < CHANGES:
            await anext(watch)
            entry = await store.get("tick")
            if entry is not None:
                delays.append((time.monotonic() - float(entry.value)) * 1000)
    finally:
        writer.join()
        await store.close()
    return delays


def _write(directory: str) -> None:
    asyncio.run(_write_ticks(Path(directory)))


async def _write_ticks(directory: Path) -> None:
    store = SqliteStore(directory / FILE)
    await store.open()
    for _ in range(CHANGES):
        await asyncio.sleep(PAUSE_S)
        await store.put("tick", repr(time.monotonic()).encode())
    await store.close()


async def _idle_percentage(directory: Path) -> float:
    store = SqliteStore(directory / FILE)
    await store.open()
    await store.watch("")
    before = time.process_time()
    await asyncio.sleep(IDLE_S)
    used = time.process_time() - before
    await store.close()
    return 100 * used / IDLE_S
