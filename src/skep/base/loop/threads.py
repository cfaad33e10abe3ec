"""The broker's threads: a pool for each kind of blocking work, so that no kind waits behind another.

A producer that waits for a sync must not wait for the removal of ten thousand files of a deleted topic, nor a consumer
for a search through a whole log. Threads start when they are first needed, so an unused pool costs nothing.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

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


class ResizablePool(Executor):
    """A pool of threads whose number can change. Work is submitted and the number changed by one thread.

    Owns the pool that takes new work, and the earlier ones, which end when they have done what was submitted to them.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._name = name
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, name)
        self._earlier: list[ThreadPoolExecutor] = []

    def resize(self, threads: int) -> None:
        """Until the earlier pool is idle, there are more threads than this."""
        if threads != self._threads:
            self._threads = threads
            self._earlier.append(self._pool)
            self._pool = ThreadPoolExecutor(threads, self._name)
            self._earlier[-1].shutdown(wait=False)

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self._pool.submit(work, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for pool in (*self._earlier, self._pool):
            pool.shutdown(wait, cancel_futures=cancel_futures)


class Threads:
    """Producers wait for ``syncs`` and consumers for ``reads``. ``batches`` looks into produced batches. ``searches``
    look up timestamps in logs. ``background`` removes, truncates, recovers and compacts."""

    def __init__(self, threads_per_pool: int) -> None:
        self.syncs = ResizablePool(threads_per_pool, "sync")
        self.reads = ResizablePool(threads_per_pool, "read")
        self.background = ResizablePool(threads_per_pool, "background")
        self.batches = ThreadPoolExecutor(BATCHES, "batch")
        self.searches = ThreadPoolExecutor(SEARCHES, "search")

    def resize(self, threads_per_pool: int) -> None:
        for pool in (self.syncs, self.reads, self.background):
            pool.resize(threads_per_pool)

    def shut_down(self) -> None:
        """Returns when all submitted work is done."""
        for pool in (self.batches, self.searches, self.reads, self.background, self.syncs):
            pool.shutdown()


def share_interpreter() -> None:
    """Makes computing threads yield soon. It affects the whole process, so only the owner of the process calls it."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
