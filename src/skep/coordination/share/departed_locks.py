"""What members of a share group held when they went, and what is not released yet.

A member may hold ten thousand records with others between them. To release them all takes 40 ms, in which the broker
would serve nobody else, so it is done a part at a time. Meanwhile nobody can acquire the rest.

A lock may expire before its turn comes, and the same member may come back and acquire the same record. So each lock is
known by its time: a later one is another.
"""

from collections import deque

from skep.coordination.share.delivery_runs import DeliveryRuns, OffsetRange
from skep.coordination.share.share_state import DeliveryState


class DepartedLocks:
    """Owns the locks to be released, in the order in which their members went."""

    __slots__ = ("_locks", "_runs")

    def __init__(self, runs: DeliveryRuns) -> None:
        self._runs = runs
        self._locks: deque[tuple[str, int, int, float]] = deque()

    def __len__(self) -> int:
        return len(self._locks)

    def add(self, member: str) -> list[OffsetRange]:
        """The member is gone. Returns what it has acknowledged and is being written: that is not released here."""
        acknowledged = []
        for run in self._runs:
            if run.state is DeliveryState.ACQUIRED and run.member == member:
                if run.target is None:
                    self._locks.append((member, run.first, run.last, run.due))
                else:
                    acknowledged.append((run.first, run.last))
        return acknowledged

    def take(self, most: int) -> list[OffsetRange]:
        """Returns what has to be released now, of so many locks, and forgets them."""
        held = []
        for _ in range(min(most, len(self._locks))):
            member, first, last, due = self._locks.popleft()
            for run in self._runs.walk(first, last):
                if run.is_held and run.member == member and run.due == due:
                    held.append((run.first, run.last))
        return held
