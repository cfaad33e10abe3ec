"""Futures that wait for the high watermark: of produce requests with acks=all, and of coordinators before they
respond."""

import asyncio
from bisect import bisect_right

from skep.base.errors import KafkaError
from skep.base.ids import Offset


class Acknowledgements:
    """One future per waiter; ``offsets`` has the offset that each waits for, in ascending order.

    Waiters do not share a future, so each may cancel its own, and a task can await it without a shield. A future that
    is cancelled before its offset is reached stays in the list until then, or until another waiter asks for the same
    offset: a batch that is retried again and again does not make the list longer.
    """

    __slots__ = ("_futures", "offsets")

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []
        self.offsets: list[Offset] = []

    def at(self, offset: Offset) -> "asyncio.Future[None]":
        """Returns a future that is done when the high watermark reaches ``offset``. It need not be awaited."""
        offsets, futures = self.offsets, self._futures
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_mark_retrieved)
        # Normally at the end of the list. A retried batch may have a lower offset.
        place = bisect_right(offsets, offset)
        if place and offsets[place - 1] == offset and futures[place - 1].done():
            futures[place - 1] = future
        else:
            offsets.insert(place, offset)
            futures.insert(place, future)
        return future

    def reached(self, high_watermark: Offset, refusal: KafkaError | None) -> None:
        """Completes all futures up to ``high_watermark``; with ``refusal`` if too few replicas have the records."""
        if self.offsets[0] > high_watermark:
            return
        count = bisect_right(self.offsets, high_watermark)
        reached, self._futures = self._futures[:count], self._futures[count:]
        del self.offsets[:count]
        for future in reached:
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal)

    def fail_all(self, error: KafkaError) -> None:
        futures, self._futures, self.offsets = self._futures, [], []
        for future in futures:
            if not future.done():
                future.set_exception(error)


def _mark_retrieved(future: "asyncio.Future[None]") -> None:
    """Retrieves the exception, so that asyncio does not log it: the client may have disconnected."""
    if not future.cancelled():
        future.exception()
