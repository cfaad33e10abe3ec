"""The target assignment of a large group, computed and written a little at a time while the group is in use.

It is computed for the members and topics of one group epoch. Then it is written, some members at a time, and last the
epoch that it was computed for. A partition moves to another member only after the first has revoked it, whatever the
targets are, so targets of two epochs beside each other do no harm. If the coordinator fails in between, the assignment
epoch is still the old one, and the next coordinator computes an assignment again.
"""

from collections.abc import Iterable, Mapping, Set

from skep.base.clock import Clock
from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import Assignment, Partitions

MEMBER_COST = 20
SMALL_COST = 10_000
"""In partitions; a member counts as ``MEMBER_COST`` of them. Up to this an assignment is made at once: some 10 ms."""
STEPS_AT_ONCE = 200
"""Steps of the assignor in one operation: some 2 ms."""
MEMBERS_AT_ONCE = 100
"""Members whose targets are written in one operation: some 2 ms."""


def is_small(members: int, partitions: int) -> bool:
    return members * MEMBER_COST + partitions <= SMALL_COST


def assigned_at(targets: Iterable[Partitions], clock: Clock) -> int:
    """Returns the time of an assignment for its record.

    An assignment of nothing has none: an assignment interval begins with the first one that gives out a partition.
    """
    return clock.now_ms() if any(targets) else 0


class TargetAssignment:
    """Computed for ``members`` in ``epoch`` by ``work``.

    ``unwritten`` are the targets to be written; None while they are being computed.
    """

    def __init__(self, epoch: int, members: Set[str], work: Work[Assignment], clock: Clock) -> None:
        self.epoch = epoch
        self.members = members
        self.unwritten: list[tuple[str, Partitions]] | None = None
        self.assigned_at = 0
        """The time for the record, once all is computed."""
        self.spent_s = 0.0
        self._clock = clock
        self._work = work

    def go_on(self) -> None:
        """Computes the next part."""
        began = self._clock.monotonic()
        try:
            for _ in range(STEPS_AT_ONCE):
                next(self._work)
        except StopIteration as end:
            self.unwritten = list(end.value.items())
            self.assigned_at = assigned_at(end.value.values(), self._clock)
        self.spent_s += self._clock.monotonic() - began

    def next_targets(self, targets: Mapping[str, Partitions]) -> list[tuple[str, Partitions]]:
        """Returns the next targets that differ from ``targets``."""
        assert self.unwritten is not None
        return [
            (member, partitions)
            for member, partitions in self.unwritten[:MEMBERS_AT_ONCE]
            if member not in targets or targets[member] != partitions
        ]

    def written(self) -> None:
        """Called when the result of ``next_targets`` is written."""
        assert self.unwritten is not None
        del self.unwritten[:MEMBERS_AT_ONCE]
