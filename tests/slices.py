"""Counts turns of the event loop, for tests of work that is done in slices."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def counting_turns(work: Awaitable[T]) -> tuple[T, int]:
    """Returns the result of ``work`` and the number of turns in which the event loop could run others meanwhile."""
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


class Turns:
    """Counts the turns of the event loop from now until ``stop``."""

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
