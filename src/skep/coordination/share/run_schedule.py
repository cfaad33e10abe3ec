"""When something has to happen to offsets of a share partition: the end of locks, the time of the next delivery.

A heap of moments, each with a range of offsets. Entries are not updated when the runs in their range change; when an
entry is taken, its runs are read again. So acknowledging a thousand records one by one does not touch the heap, and the
next moment is found without visiting every run.
"""

import heapq
from collections.abc import Callable

from skep.coordination.share.delivery_runs import DeliveryRuns, OffsetRange, Run

_SPARE = 64

MomentOf = Callable[[Run], float | None]
"""Returns the moment of a run, or None if it has none."""


class RunSchedule:
    """Owns the heap. For every run that has a moment there is an entry at that moment, with its offsets or more."""

    __slots__ = ("_heap", "_moment_of", "_runs")

    def __init__(self, runs: DeliveryRuns, moment_of: MomentOf) -> None:
        self._runs = runs
        self._moment_of = moment_of
        self._heap: list[tuple[float, int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, moment: float, first: int, last: int) -> None:
        """The runs of these offsets have this moment, or will have it when the change under way is made."""
        heapq.heappush(self._heap, (moment, first, last))

    def add_runs(self, first: int, last: int) -> None:
        for run in self._runs.walk(first, last):
            if (moment := self._moment_of(run)) is not None:
                self.add(moment, run.first, run.last)

    def tidy(self) -> None:
        """Rebuilds the heap when most entries must be outdated."""
        if len(self._heap) > 2 * len(self._runs) + _SPARE:
            self._heap = [
                (moment, run.first, run.last) for run in self._runs if (moment := self._moment_of(run)) is not None
            ]
            heapq.heapify(self._heap)

    def take_due(self, now: float, most: int) -> list[OffsetRange]:
        """Removes the entries whose moment has come, and returns their runs, at most so many."""
        due: list[OffsetRange] = []
        while self._heap and self._heap[0][0] <= now and len(due) < most:
            entry, first, last = heapq.heappop(self._heap)
            for run in self._runs.walk(first, last):
                moment = self._moment_of(run)
                if moment is None or moment > now:
                    continue
                if len(due) >= most:
                    self.add(entry, run.first, last)
                    break
                due.append((run.first, run.last))
        return due

    def next(self) -> float | None:
        """Returns the first moment of a run. Removes outdated entries before it."""
        while self._heap:
            moment, first, last = self._heap[0]
            if any(self._moment_of(run) == moment for run in self._runs.walk(first, last)):
                return moment
            heapq.heappop(self._heap)
        return None
