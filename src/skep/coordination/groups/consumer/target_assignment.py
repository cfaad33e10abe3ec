"""A target assignment that is being made for a large group, a little at a time, while the group goes on.

It is made for the members and topics of one group epoch. Then it is written, some members at a time, and at last the
epoch that it was made for. A partition goes from one member to another only when the first has let go of it, whatever
the targets say, so targets of two epochs beside each other do no harm; and when the coordinator fails in between, the
assignment epoch is still the old one, and an assignment is made anew.
"""

from collections.abc import Mapping

from skep.base.clock import Clock
from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import Assignment, Assignor, PartitionCounts, Partitions, Subscribers

MEMBER_COST = 20
SMALL_COST = 10_000
"""Of partitions, a member counting as ``MEMBER_COST`` of them. Up to this an assignment is not cut up: some 10 ms."""
STEPS_AT_ONCE = 200
"""Pauses of the assignor that are passed over in one operation: some 2 ms."""
MEMBERS_AT_ONCE = 100
"""Whose targets are written in one operation: some 2 ms."""


def is_small(members: int, counts: PartitionCounts) -> bool:
    return members * MEMBER_COST + sum(counts.values()) <= SMALL_COST


class TargetAssignment:
    """Made for ``epoch``. ``unwritten`` has the targets that are not written yet, None while they are made."""

    def __init__(
        self, epoch: int, assignor: Assignor, subscribers: Subscribers, counts: PartitionCounts, clock: Clock
    ) -> None:
        self.epoch = epoch
        self.members = subscribers.keys()
        self.unwritten: list[tuple[str, Partitions]] | None = None
        self.spent_s = 0.0
        self._clock = clock
        self._work: Work[Assignment] = assignor(subscribers, counts)

    def go_on(self) -> None:
        """Makes the next part of it."""
        began = self._clock.monotonic()
        try:
            for _ in range(STEPS_AT_ONCE):
                next(self._work)
        except StopIteration as end:
            self.unwritten = list(end.value.items())
        self.spent_s += self._clock.monotonic() - began

    def next_targets(self, targets: Mapping[str, Partitions]) -> list[tuple[str, Partitions]]:
        """The next of those that differ from ``targets``."""
        assert self.unwritten is not None
        return [
            (member, partitions)
            for member, partitions in self.unwritten[:MEMBERS_AT_ONCE]
            if member not in targets or targets[member] != partitions
        ]

    def written(self) -> None:
        """What ``next_targets`` gave is written."""
        assert self.unwritten is not None
        del self.unwritten[:MEMBERS_AT_ONCE]
