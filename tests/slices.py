"""For tests of work in slices: a clock that makes them deterministic, and turns of the event loop, counted."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from skep.base.clock import ManualClock

T = TypeVar("T")


class TickingClock(ManualClock):
    """Moves by a millisecond at each look: between two looks of the slicer there is one step of work."""

    def monotonic(self) -> float:
        self.advance_ms(1)
        return super().monotonic()


async def counting_turns(work: Awaitable[T]) -> tuple[T, int]:
    """What ``work`` gives, and in how many turns of the loop others had their chance meanwhile."""
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        handle[0] = asyncio.get_running_loop().call_soon(count)

    handle = [asyncio.get_running_loop().call_soon(count)]
    try:
        return await work, turns
    finally:
        handle[0].cancel()
