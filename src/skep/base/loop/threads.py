"""The broker's threads: a pool for each kind of blocking work, so that no kind waits behind another.

A producer that waits for a sync must not wait for the removal of ten thousand files of a deleted topic, nor a consumer
for a search through a whole log. Threads start when they are first needed, so an unused pool costs nothing.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SEARCHES = 2
"""Searches are Python code and compete with the event loop for the interpreter, so few run at a time."""

BATCHES = 2
"""Produced batches that are examined or compressed at a time. Each may decompress to 32 MiB."""

SWITCH_INTERVAL_S = 0.0005
"""How long a computing thread may keep the interpreter when the event loop wants it back."""


T = TypeVar("T")


async def maybe_in_thread(work: Callable[[], T], *, is_large: bool) -> T:
    """Runs ``work`` in a thread if it is large, and directly otherwise. It must not touch state of the event loop."""
    return await asyncio.to_thread(work) if is_large else work()


class Threads:
    """Producers wait for ``syncs`` and consumers for ``reads``. ``batches`` looks into produced batches. ``searches``
    look up timestamps in logs. ``background`` removes, truncates, recovers and compacts."""

    def __init__(self, threads_per_pool: int) -> None:
        self.syncs = ThreadPoolExecutor(threads_per_pool, "sync")
        self.reads = ThreadPoolExecutor(threads_per_pool, "read")
        self.background = ThreadPoolExecutor(threads_per_pool, "background")
        self.batches = ThreadPoolExecutor(BATCHES, "batch")
        self.searches = ThreadPoolExecutor(SEARCHES, "search")

    def shut_down(self) -> None:
        """Returns when all submitted work is done."""
        for pool in (self.batches, self.searches, self.reads, self.background, self.syncs):
            pool.shutdown()


def share_interpreter() -> None:
    """Makes computing threads yield soon. It affects the whole process, so only the owner of the process calls it."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
