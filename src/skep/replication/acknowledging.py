"""Who waits for the high watermark: produce requests with acks=all, and coordinators before they answer."""

import asyncio
from bisect import bisect_right, insort

from skep.base.errors import KafkaError
from skep.base.ids import Offset


class Acknowledgements:
    """One future for each offset that the high watermark has to reach; ``offsets`` has them in ascending order.

    Those who wait for an offset share its future, so whoever gives up waiting must not cancel it.
    """

    __slots__ = ("_futures", "offsets")

    def __init__(self) -> None:
        self._futures: dict[Offset, asyncio.Future[None]] = {}
        self.offsets: list[Offset] = []

    def at(self, offset: Offset) -> "asyncio.Future[None]":
        """Done when the high watermark is at ``offset``. Who does not care need not await it."""
        future = self._futures.get(offset)
        if future is None or future.done():
            if future is None:
                # At the end, but for a batch that is sent again after it was given up.
                insort(self.offsets, offset)
            future = self._futures[offset] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_look_at)
        return future

    def reached(self, high_watermark: Offset, refusal: KafkaError | None) -> None:
        """Answers all up to here; with ``refusal`` when they are too few copies to be promised."""
        if self.offsets[0] > high_watermark:
            return
        count = bisect_right(self.offsets, high_watermark)
        reached, self.offsets = self.offsets[:count], self.offsets[count:]
        for offset in reached:
            future = self._futures.pop(offset)
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal)

    def give_up(self, error: KafkaError) -> None:
        futures, self._futures, self.offsets = self._futures, {}, []
        for future in futures.values():
            if not future.done():
                future.set_exception(error)


def _look_at(future: "asyncio.Future[None]") -> None:
    """That nobody awaits it is no mistake: the client may have gone."""
    if not future.cancelled():
        future.exception()
