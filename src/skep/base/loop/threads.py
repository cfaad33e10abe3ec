"""The broker's threads: a pool for each kind of waiting, so that no kind waits behind another.

A producer that waits for a sync must not wait until ten thousand files of a deleted topic are gone, a consumer not
until somebody's search through a whole log has ended. Threads are started when they are first needed, so a pool that is
not used costs nothing.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SEARCHES = 2
"""Searches are Python code, and compete with the event loop for the interpreter: few at a time."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread that computes may keep the interpreter from the event loop, each time the loop wants it back."""


T = TypeVar("T")


async def run_apart(work: Callable[[], T], *, if_true: bool) -> T:
    """Runs ``work``, which touches nothing of the event loop's: in a thread if it is large, here and now otherwise."""
    return await asyncio.to_thread(work) if if_true else work()


class Threads:
    """``syncs`` are waited for by producers and ``reads`` by consumers; ``searches`` look times up in logs; the
    ``background`` removes, cuts, recovers and compacts."""

    def __init__(self, threads_per_pool: int) -> None:
        self.syncs = ThreadPoolExecutor(threads_per_pool, "sync")
        self.reads = ThreadPoolExecutor(threads_per_pool, "read")
        self.background = ThreadPoolExecutor(threads_per_pool, "background")
        self.searches = ThreadPoolExecutor(SEARCHES, "search")

    def shut_down(self) -> None:
        """Returns when they have done what they were given."""
        for pool in (self.searches, self.reads, self.background, self.syncs):
            pool.shutdown()


def share_interpreter() -> None:
    """Makes threads that compute give way soon. For the whole process, so the one that owns it calls this."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
