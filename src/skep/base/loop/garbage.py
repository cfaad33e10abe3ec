"""Keeps the pauses of Python's garbage collector short.

A full collection visits every object: with ten thousand open partitions that takes half a second, in which no client is
served. Nearly all of these objects live as long as the broker. So the objects that survive a long full collection are
frozen (``gc.freeze``): later collections do not visit them, and each takes about ``PAUSE_S`` at most.

Reference counts still free frozen objects, but not a frozen cycle that has become unreachable, such as the partitions
of a deleted topic. Those are found when all objects are visited again, which happens when the broker is idle, or after
``LONGEST_S`` if it never is.
"""

import gc
from collections.abc import Callable
from typing import Any

from skep.base.clock import Clock

PAUSE_S = 0.005
MIDDLE_COLLECTIONS = 2
"""A full collection follows after more than this many of the middle generation. With Python's 10, the first one after a
freeze visits 90,000 objects, which takes 9 ms, or 25 ms with cold caches."""
CHECK_MS = 60_000
IDLE_SHARE = 0.02
"""The share of a processor below which a broker is idle, and a pause disturbs no client."""
SHORTEST_S = 600.0
LONGEST_S = 6 * 3600.0

_OLDEST = 2
_AT_FIRST = gc.get_threshold()


class Garbage:
    """Controls what is frozen, from ``start`` to ``stop``. Several brokers in one process share the collector."""

    def __init__(self, clock: Clock, process_time: Callable[[], float]) -> None:
        self._clock = clock
        self._process_time = process_time
        self._began = 0.0
        self._is_frozen = False
        self._visited_all = self._checked = clock.monotonic()
        self._used = process_time()

    def start(self) -> None:
        young, middle, _ = _AT_FIRST
        gc.set_threshold(young, middle, MIDDLE_COLLECTIONS)
        _freeze()
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
        if not any(isinstance(getattr(one, "__self__", None), Garbage) for one in gc.callbacks):
            # No other broker runs in this process.
            gc.set_threshold(*_AT_FIRST)
            gc.unfreeze()

    def freeze(self) -> None:
        """Freezes all objects, for example after many logs were opened."""
        self._is_frozen = True
        _freeze()

    async def check(self) -> None:
        """Call this every ``CHECK_MS``. Visits all objects when that is due and the broker is idle."""
        now, used = self._clock.monotonic(), self._process_time()
        is_idle = used - self._used < IDLE_SHARE * (now - self._checked)
        self._checked, self._used = now, used
        since_s = now - self._visited_all
        if self._is_frozen and (since_s >= LONGEST_S or (is_idle and since_s >= SHORTEST_S)):
            self._visited_all, self._is_frozen = now, False
            gc.unfreeze()
            gc.collect()
            if self._is_frozen:
                _freeze()

    def _collecting(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began = self._clock.monotonic()
        elif self._clock.monotonic() - self._began > PAUSE_S:
            self.freeze()


def _freeze() -> None:
    gc.freeze()
    # The next full collection waits until there are a quarter more objects than after the last one, frozen ones
    # included. This one visits nothing, so that the next comes early and is short. Inside a collection it does nothing.
    gc.collect()
