"""Timers by key that yield operations. Scheduling a key again replaces its earlier timer.

Most timers are postponed again and again (each heartbeat postpones its member's session timeout) and never fire. So
postponing costs one write to a dictionary: the heap keeps the earlier moment, and an entry that comes up before its
time is pushed back.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from skep.base.clock import Clock


class Timers:
    """Owns the timers. ``on_earlier`` is called when the next moment has come nearer."""

    def __init__(self, clock: Clock, on_earlier: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._on_earlier = on_earlier or _ignore
        self._due: dict[Hashable, tuple[int, Callable[[Any], Any]]] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._due

    def schedule(self, key: Hashable, delay_ms: int, operation: Callable[[Any], Any]) -> None:
        """Runs ``operation(shard)`` in ``delay_ms`` from now, as if a client had asked for it."""
        moment = self._now_ms() + delay_ms
        earlier = self._due.get(key)
        self._due[key] = (moment, operation)
        if earlier is None or moment < earlier[0]:
            self._push(moment, key)

    def cancel(self, key: Hashable) -> None:
        self._due.pop(key, None)
        if len(self._heap) > 2 * len(self._due) + 64:
            # Most entries are cancelled timers: build a new heap instead of keeping them until their moment.
            self._heap = []
            for left, (moment, _) in self._due.items():
                self._push(moment, left)

    def stop(self) -> None:
        """Drops all timers and the callback, which may refer to the owner: unloaded state is freed at once."""
        self._due.clear()
        self._heap.clear()
        self._on_earlier = _ignore

    def next_moment(self) -> float | None:
        """Returns the moment, on the monotonic clock, at which the next timer may be due; None if there is none."""
        return self._heap[0][0] / 1000 if self._heap else None

    def take_due(self) -> Iterator[Callable[[Any], Any]]:
        """Yields the operations that are due, and forgets each as it is yielded.

        Operations that one of them cancels or postpones are not yielded; those that it schedules for now are.
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
        # Whole milliseconds: sums of fractions differ in the last digit, and a timer would not be due at its own
        # moment.
        return round(self._clock.monotonic() * 1000)

    def _push(self, moment: int, key: Hashable) -> None:
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, key))
        if self._heap[0][2] == key:
            self._on_earlier()


def _ignore() -> None:
    """The callback of timers without an owner."""
