"""Fetches that wait for data: parked on the partitions they read, woken by appends or by their own timer.

A parked fetch does not look at its partitions again until enough bytes have come in sum, so an append costs one
addition for each fetch parked on the partition, and a fetch that waits costs nothing at all. In a partition with
undecided transactions the bytes say nothing to a read_committed reader: it is woken when the last stable offset moves.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Watched(Protocol):
    """Something with readers that want to know when more can be read."""

    parked: "set[ParkedFetch]"


class ParkedFetch:
    """One fetch that found less than ``missing_bytes``. Owns its place in the ``parked`` sets of its partitions.

    It is in these sets from ``park`` until it is woken or ``wait`` is cancelled. ``park`` is not a part of ``wait``, so
    that a fetch can be parked in the turn of the loop in which it looked: with a turn in between it would have to look
    again.
    """

    __slots__ = ("_missing_bytes", "_timer", "_watched", "_woken", "read_committed")

    def __init__(self, watched: Iterable[Watched], missing_bytes: int, *, read_committed: bool = False) -> None:
        self.read_committed = read_committed
        self._watched = list(watched)
        self._missing_bytes = missing_bytes
        self._timer: asyncio.TimerHandle | None = None
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def park(self, timeout_ms: float) -> "ParkedFetch":
        """Have the partitions wake it, and the time when it is up. Whoever parks it has to ``wait``."""
        for watched in self._watched:
            watched.parked.add(self)
        self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self.wake)
        return self

    def more(self, size: int) -> None:
        """``size`` more bytes can be read from one of the partitions."""
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Have the fetch look again: enough came, the time is up, or a partition went away."""
        if not self._woken.done():
            self._woken.set_result(None)
            self._leave()

    async def wait(self) -> None:
        """Returns when it is woken. Cancelled (the client left), it leaves every partition."""
        try:
            await self._woken
        except asyncio.CancelledError:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for watched in self._watched:
            watched.parked.discard(self)


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
