"""What a member of a share group asks for, and the records that it gets from the runs that are available."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from skep.coordination.share.delivery_runs import Changed, OffsetRange, Run, archived
from skep.coordination.share.share_state import DeliveryState


class Acquired(NamedTuple):
    """Records that a member got. Kafka: AcquiredRecords."""

    first: int
    last: int
    delivery_count: int


class Order(NamedTuple):
    """What a member asks for."""

    member: str
    max_records: int
    batch_size: int
    """The number of records in one ``Acquired``, unless a batch of the log has more."""
    is_record_limit: bool = False
    """Whether ``max_records`` is exact (KIP-1206). Otherwise whole batches of the log are acquired."""


class Acquisition:
    """One ``acquire`` in progress. Owns what was acquired so far, and how many more may be.

    ``changes`` of the runs are ascending, and made all at once by the caller.
    """

    def __init__(
        self, order: Order, batches: Sequence[OffsetRange], due: float, aborted: Sequence[OffsetRange]
    ) -> None:
        self._order = order
        self._batches = batches
        self._due = due
        self._aborted = aborted
        self.left = order.max_records
        self.acquired: list[Acquired] = []
        self.changes: list[tuple[int, int, Changed]] = []
        self.is_isolated = False

    def last_of(self, run: Run, most: int) -> int:
        """Returns the last offset of at most ``most`` records from the beginning of the run, or of the batch of the log
        in which they end."""
        last = run.first + most - 1
        if last >= run.last:
            return run.last
        if not self._order.is_record_limit:
            number = bisect_right(self._batches, last, key=_first) - 1
            last = max(last, self._batches[number][1]) if number >= 0 else last
        return min(last, run.last)

    def take(self, run: Run) -> None:
        """Acquires the run. Its aborted batches are archived instead."""
        self.left -= run.last - run.first + 1
        first = run.first
        for aborted_first, aborted_last in self._aborted[bisect_left(self._aborted, first, key=_last) :]:
            if aborted_first > run.last:
                break
            if aborted_first > first:
                self._acquire(run, first, aborted_first - 1)
            begin, first = max(first, aborted_first), min(aborted_last, run.last) + 1
            self.changes.append((begin, first - 1, archived))
        if first <= run.last:
            self._acquire(run, first, run.last)

    def _acquire(self, run: Run, first: int, last: int) -> None:
        member, due, count = self._order.member, self._due, run.delivery_count + 1
        for group_first, group_last in self._groups(first, last):
            size = run.size if count > 1 else group_last - group_first + 1
            acquired = Run(group_first, group_last, DeliveryState.ACQUIRED, count, member, due, size)
            self.changes.append((group_first, group_last, partial(_instead, acquired)))
            self.acquired.append(Acquired(group_first, group_last, count))

    def _groups(self, first: int, last: int) -> Iterator[OffsetRange]:
        """Yields parts of at least ``batch_size`` offsets that begin where batches of the log begin."""
        size = self._order.batch_size
        if not self._order.is_record_limit and last - first >= size:
            for base, _ in self._batches[bisect_right(self._batches, first, key=_first) :]:
                if base > last:
                    break
                if base - first >= size:
                    yield first, base - 1
                    first = base
        yield first, last


def _last(batch: OffsetRange) -> int:
    return batch[1]


def _first(batch: OffsetRange) -> int:
    return batch[0]


def _instead(acquired: Run, piece: Run) -> Run:
    return acquired
