"""Counting slices, not seconds: a clock that moves by itself, and how often the event loop has been round."""

import asyncio

from skep.base.clock import ManualClock


class TickingClock(ManualClock):
    """Each look at it takes a millisecond, so five steps of any work are a slice."""

    def monotonic(self) -> float:
        self.advance_ms(1)
        return super().monotonic()


class Turns:
    """How often the event loop has been round since this began."""

    def __init__(self) -> None:
        self.count = 0
        self._is_counting = True
        self._count()

    def _count(self) -> None:
        self.count += 1
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> int:
        self._is_counting = False
        return self.count
