"""What members of a share group held when they went, and what is not released yet.

A member may hold ten thousand records with others between them. To release them all takes 40 ms, in which the broker
would serve nobody else, so it is done a part at a time. Meanwhile nobody can acquire the rest.

The same member may come back and renew a lock before its turn comes. So each lock is known by its time: a later one is
another.

What such a member has acknowledged is not released while that is being written. Its lock gets the time ``GONE``: if the
write fails, nobody is there to get the record back.
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
        """Returns what has to be released now, of so many locks, and forgets them."""
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
