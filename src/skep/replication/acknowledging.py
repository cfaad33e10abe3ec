"""Who waits for the high watermark: produce requests with acks=all, and coordinators before they answer."""

import asyncio
from collections import deque

from skep.base.errors import KafkaError
from skep.base.ids import Offset


class Acknowledgements:
    """Futures by the offset that the high watermark has to reach, in ascending order."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[Offset, asyncio.Future[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def at(self, offset: Offset) -> "asyncio.Future[None]":
        """Done when the high watermark is at ``offset``. Who does not care need not await it."""
        if self._waiting and self._waiting[-1][0] == offset and not self._waiting[-1][1].done():
            return self._waiting[-1][1]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_look_at)
        waiting = self._waiting
        if waiting and waiting[-1][0] > offset:
            # A batch that was sent again, whose first copy waits too: its place is further in front.
            waiting.append((offset, future))
            self._waiting = deque(sorted(waiting, key=lambda one: one[0]))
        else:
            waiting.append((offset, future))
        return future

    def reached(self, high_watermark: Offset, refusal: KafkaError | None) -> None:
        """Answers all up to here; with ``refusal`` when they are too few copies to be promised."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            _, future = waiting.popleft()
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal)

    def give_up(self, error: KafkaError) -> None:
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)


def _look_at(future: "asyncio.Future[None]") -> None:
    """That nobody awaits it is no mistake: the client may have gone."""
    if not future.cancelled():
        future.exception()
