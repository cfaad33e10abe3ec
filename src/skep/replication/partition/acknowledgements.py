"""Who waits for the high watermark: produce requests with acks=all, and coordinators before they answer."""

import asyncio
from bisect import bisect_right

from skep.base.errors import KafkaError
from skep.base.ids import Offset


class Acknowledgements:
    """A future for everybody who waits; ``offsets`` has what each of them waits for, in ascending order.

    Nobody shares a future, so whoever gives up may cancel it, and a task can await it without a shield around it. A
    future that is done before its offset is reached stays in the list until then, or until somebody else waits for the
    same offset: a batch that is sent again and again does not make the list longer.
    """

    __slots__ = ("_futures", "offsets")

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []
        self.offsets: list[Offset] = []

    def at(self, offset: Offset) -> "asyncio.Future[None]":
        """Done when the high watermark is at ``offset``. Who does not care need not await it."""
        offsets, futures = self.offsets, self._futures
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_look_at)
        # At the end, but for a batch that is sent again after it was given up.
        place = bisect_right(offsets, offset)
        if place and offsets[place - 1] == offset and futures[place - 1].done():
            futures[place - 1] = future
        else:
            offsets.insert(place, offset)
            futures.insert(place, future)
        return future

    def reached(self, high_watermark: Offset, refusal: KafkaError | None) -> None:
        """Answers all up to here; with ``refusal`` when they are too few copies to be promised."""
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

    def give_up(self, error: KafkaError) -> None:
        futures, self._futures, self.offsets = self._futures, [], []
        for future in futures:
            if not future.done():
                future.set_exception(error)


def _look_at(future: "asyncio.Future[None]") -> None:
    """That nobody awaits it is no mistake: the client may have gone."""
    if not future.cancelled():
        future.exception()
