"""What a member of a share group asks for, and the records that it gets from the runs that are available."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from skep.coordination.share.delivery_runs import Changed, OffsetRange, Run
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
        self,
        order: Order,
        batches: Sequence[OffsetRange],
        due: float,
        dropped: Sequence[tuple[int, int, Changed]],
        only: Sequence[OffsetRange] | None = None,
    ) -> None:
        """``dropped`` are batches that are not delivered, ascending, and what becomes of them. ``only`` are the offsets
        that may be acquired; None: all."""
        self._order = order
        self._batches = batches
        self._due = due
        self._dropped = dropped
        self._only = only
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

    def offer(self, run: Run, isolated_size: Callable[[Run], int | None]) -> bool:
        """Acquires a run that is ready, or its beginning. Returns whether more may follow."""
        return all(self.left > 0 and self._take_piece(piece, isolated_size(piece)) for piece in self._pieces(run))

    def _take_piece(self, run: Run, most: int | None) -> bool:
        if most is None:
            self.take(run._replace(last=self.last_of(run, self.left)))
            return True
        if not self.changes:
            self.take(run._replace(last=min(run.last, run.first + min(most, self.left) - 1)))
        self.is_isolated = True
        return False

    def _pieces(self, run: Run) -> Iterator[Run]:
        """Yields the parts of the run that may be acquired."""
        if self._only is None:
            yield run
            return
        for first, last in self._only[bisect_left(self._only, run.first, key=_end) :]:
            if first > run.last:
                break
            yield run._replace(first=max(first, run.first), last=min(last, run.last))

    def take(self, run: Run) -> None:
        """Acquires the run, apart from the batches in it that are dropped."""
        self.left -= run.last - run.first + 1
        first = run.first
        for dropped_first, dropped_last, changed in self._dropped[bisect_left(self._dropped, first, key=_last) :]:
            if dropped_first > run.last:
                break
            if dropped_first > first:
                self._acquire(run, first, dropped_first - 1)
            begin, first = max(first, dropped_first), min(dropped_last, run.last) + 1
            self.changes.append((begin, first - 1, changed))
        if first <= run.last:
            self._acquire(run, first, run.last)

    def _acquire(self, run: Run, first: int, last: int) -> None:
        member, due, count = self._order.member, self._due, run.delivery_count + 1
        for group_first, group_last in self._groups(first, last):
            size = run.size if count > 1 else group_last - group_first + 1
            acquired = Run(
                group_first, group_last, DeliveryState.ACQUIRED, count, member, due, size, failures=run.failures
            )
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


def overlaps(ranges: Sequence[OffsetRange], others: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges that begin in one of the others, which are ascending."""
    found, left = [], iter(others)
    other = next(left, None)
    for first, last in ranges:
        while other is not None and other[1] < first:
            other = next(left, None)
        if other is not None and other[0] <= first:
            found.append((first, last))
    return found


def _last(dropped: tuple[int, int, Changed]) -> int:
    return dropped[1]


def _end(batch: OffsetRange) -> int:
    return batch[1]


def _first(batch: OffsetRange) -> int:
    return batch[0]


def _instead(acquired: Run, piece: Run) -> Run:
    return acquired
