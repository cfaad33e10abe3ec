"""Fetches that wait for data: parked on the partitions they read, woken by appends or by their own timer.

A parked fetch does not look at its partitions again until enough bytes have come in sum, so an append costs one
addition for each fetch parked on the partition, and a fetch that waits costs nothing at all. In a partition with
undecided transactions the bytes say nothing to a read_committed reader: it is woken when the last stable offset moves.
"""

import asyncio
from typing import Protocol


class Watched(Protocol):
    """Something with readers that want to know when more can be read."""

    parked: "set[ParkedFetch]"


class ParkedFetch:
    """One fetch that found less than ``missing_bytes``. Owns its place in the ``parked`` sets of its partitions.

    It is in the set of a partition from ``watch`` until it is woken or ``leave`` is called. Whoever parks a fetch looks
    at each partition again when it has called ``watch``: what came between the first look and this one woke nobody.
    """

    __slots__ = ("_missing_bytes", "_watched", "_woken", "read_committed")

    def __init__(self, missing_bytes: int, *, read_committed: bool = False) -> None:
        self.read_committed = read_committed
        self._watched: list[Watched] = []
        self._missing_bytes = missing_bytes
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_woken(self) -> bool:
        return self._woken.done()

    def watch(self, watched: Watched) -> None:
        """Have this partition wake it, too."""
        if not self._woken.done():
            self._watched.append(watched)
            watched.parked.add(self)

    def more(self, size: int) -> None:
        """``size`` more bytes can be read from one of the partitions."""
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Have the fetch look again: enough came, the time is up, or a partition went away."""
        if not self._woken.done():
            self._woken.set_result(None)
            self.leave()

    async def wait(self, timeout_ms: float) -> None:
        """Returns when it is woken, or when the time is up. Cancelled (the client left), it leaves every partition."""
        if self._woken.done():
            return
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self.leave()

    def leave(self) -> None:
        for watched in self._watched:
            watched.parked.discard(self)
        self._watched.clear()


class Watch(Protocol):
    """Somebody who is told about a partition as long as it is there, and not only while a fetch is parked."""

    def moved(self) -> None:
        """The high watermark has moved."""

    def more(self, size: int) -> None:
        """``size`` bytes were appended."""

    def wake(self) -> None:
        """The partition goes away or changes hands."""


class Tail:
    """Where fetches of followers are parked: they wait for appends, not for the high watermark."""

    __slots__ = ("parked", "watches")

    def __init__(self) -> None:
        self.parked: set[ParkedFetch] = set()
        self.watches: set[Watch] = set()
