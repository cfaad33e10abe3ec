"""Timers that give operations, by key: a later ``schedule`` under the same key replaces the earlier.

Most timers are put off again and again (each heartbeat puts off its member's session) and never go off. So putting off
costs a dictionary write: the heap keeps the earlier moment, and what comes up there before its time is put back.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from skep.base.clock import Clock


class Timers:
    """Owns what is due when. ``on_earlier`` is called when the next moment has come nearer."""

    def __init__(self, clock: Clock, on_earlier: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._on_earlier = on_earlier
        self._due: dict[Hashable, tuple[int, Callable[[Any], Any]]] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._due

    def schedule(self, key: Hashable, delay_ms: int, operation: Callable[[Any], Any]) -> None:
        """``operation(shard)`` is run ``delay_ms`` from now, as if somebody had asked for it."""
        moment = self._now_ms() + delay_ms
        earlier = self._due.get(key)
        self._due[key] = (moment, operation)
        if earlier is None or moment < earlier[0]:
            self._push(moment, key)

    def cancel(self, key: Hashable) -> None:
        self._due.pop(key, None)
        if len(self._heap) > 2 * len(self._due) + 64:
            # Mostly timers that were cancelled: begin anew rather than carry them to their moment.
            self._heap = []
            for left, (moment, _) in self._due.items():
                self._push(moment, left)

    def clear(self) -> None:
        self._due.clear()
        self._heap.clear()

    def next_moment(self) -> float | None:
        """When, on the monotonic clock, it is worth asking again; None: not before the next ``schedule``."""
        return self._heap[0][0] / 1000 if self._heap else None

    def take_due(self) -> Iterator[Callable[[Any], Any]]:
        """The operations whose time has come, each of which is forgotten when it is given.

        What one of them cancels or puts off is not given; what it schedules for now is.
        """
        while self._heap and self._heap[0][0] <= (now := self._now_ms()):
            _, _, key = heapq.heappop(self._heap)
            due = self._due.get(key)
            if due is None:
                continue
            moment, operation = due
            if moment > now:
                self._push(moment, key)
                continue
            del self._due[key]
            yield operation

    def _now_ms(self) -> int:
        # Whole milliseconds: sums of fractions differ in their last digit, and a timer would not be due when it is.
        return round(self._clock.monotonic() * 1000)

    def _push(self, moment: int, key: Hashable) -> None:
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, key))
        if self._heap[0][2] == key:
            self._on_earlier()
