"""The locks of members that have left a share group, until they are released.

A member may hold ten thousand records in as many runs. Releasing them takes 40 ms, which is too long for one turn of
the event loop, so it is done in parts. Until then the remaining records cannot be acquired.

The same member may return and renew a lock before it is released. So a lock is identified by its expiry: one with a
later expiry is a new lock.

A record that such a member has acknowledged is not released while the result is being written. Its lock gets the time
``GONE``: if the write fails, the record is released, because its member is gone.
"""

from collections import deque
from collections.abc import Sequence

from skep.coordination.share.delivery_runs import DeliveryRuns, OffsetRange, Run, merged
from skep.coordination.share.share_state import DeliveryState

GONE = 0.0
"""The time of the lock of a record that is being written, and whose member is gone. No other lock has it."""


class DepartedLocks:
    """Owns the locks to be released, in the order in which their members went. They are at most as many as the runs
    that members hold, however often a member goes."""

    __slots__ = ("_locks", "_runs")

    def __init__(self, runs: DeliveryRuns) -> None:
        self._runs = runs
        self._locks: deque[tuple[str, int, int, float]] = deque()

    def __len__(self) -> int:
        return len(self._locks)

    def add(self, member: str) -> None:
        """The member is gone."""
        # What is left of the last time that it went is found again. A client that connects again and again would
        # otherwise add all of it each time.
        if any(lock[0] == member for lock in self._locks):
            self._locks = deque(lock for lock in self._locks if lock[0] != member)
        acknowledged = []
        for run in self._runs:
            if run.state is DeliveryState.ACQUIRED and run.member == member:
                if run.target is None:
                    self._locks.append((member, run.first, run.last, run.due))
                else:
                    acknowledged.append((run.first, run.last))
        self._mark(acknowledged)

    def add_rolled_back(self, first: int, last: int) -> None:
        """What was acknowledged of these offsets could not be written."""
        for run in self._runs.walk(first, last):
            if run.is_held and run.due == GONE:
                self._locks.append((run.member, run.first, run.last, GONE))

    def take(self, most: int) -> list[OffsetRange]:
        """Removes at most so many locks, and returns what has to be released of them."""
        held: list[OffsetRange] = []
        acknowledged: list[OffsetRange] = []
        for _ in range(min(most, len(self._locks))):
            member, first, last, due = self._locks.popleft()
            for run in self._runs.walk(first, last):
                if run.state is DeliveryState.ACQUIRED and run.member == member and run.due == due:
                    (held if run.target is None else acknowledged).append((run.first, run.last))
        self._mark(acknowledged)
        return held

    def _mark(self, acknowledged: Sequence[OffsetRange]) -> None:
        self._runs.change_each([(first, last, _gone) for first, last in merged(acknowledged)])


def _gone(run: Run) -> Run:
    return run._replace(due=GONE)
