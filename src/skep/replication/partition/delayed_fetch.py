"""Delayed fetches: they wait for data on the partitions they read, and are woken by appends or by their own timer.

A delayed fetch does not read its partitions again until enough bytes have arrived in sum. So an append costs one
addition per delayed fetch of the partition, and a waiting fetch costs nothing. In a partition with undecided
transactions the number of bytes says nothing to a read_committed reader: it is woken when the last stable offset moves.
"""

import asyncio
from typing import Protocol


class Watched(Protocol):
    """A partition, or its ``Tail``, whose appends complete delayed fetches."""

    delayed_fetches: "set[DelayedFetch]"


class DelayedFetch:
    """One fetch that lacks ``missing_bytes`` bytes. Owns its entries in the ``delayed_fetches`` of its partitions.

    It is in the set of a partition from ``watch`` until it is woken or ``leave`` is called. The caller of ``watch`` has
    to check each partition again afterwards: what arrived between its first check and ``watch`` woke nobody.
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
        """Adds a partition that wakes this fetch."""
        if not self._woken.done():
            self._watched.append(watched)
            watched.delayed_fetches.add(self)

    def more(self, size: int) -> None:
        """``size`` more bytes can be read from one of the partitions."""
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Completes the wait: enough bytes have arrived, the time is up, or a partition was removed."""
        if not self._woken.done():
            self._woken.set_result(None)
            self.leave()

    async def wait(self, timeout_ms: float) -> None:
        """Returns when the fetch is woken or the time is up. When cancelled (the client disconnected) it leaves every
        partition."""
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
            watched.delayed_fetches.discard(self)
        self._watched.clear()


class Watch(Protocol):
    """An observer of a partition that stays for as long as the partition does, not only for one fetch."""

    def moved(self) -> None:
        """The high watermark has moved."""

    def more(self, size: int) -> None:
        """``size`` bytes were appended."""

    def wake(self) -> None:
        """The partition was removed, or its leader has changed."""


class Tail:
    """The fetches of followers that wait for a partition. They wait for appends instead of the high watermark.

    ``watches`` are those of fetch sessions (``broker/fetch/follower_watch.py``), ``delayed_fetches`` those without one.
    """

    __slots__ = ("delayed_fetches", "watches")

    def __init__(self) -> None:
        self.delayed_fetches: set[DelayedFetch] = set()
        self.watches: set[Watch] = set()
