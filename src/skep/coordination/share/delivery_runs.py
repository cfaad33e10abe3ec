"""The offsets of a share partition that are in flight, as runs of offsets in the same state.

A thousand records that were fetched together are one run, and stay one until somebody treats them differently. So the
memory and the work follow the number of differences, not the number of records::

    start                                                    end
    | ACKNOWLEDGED 0-499 | ACQUIRED 500-999 by m1 | AVAILABLE 1000-1003, delivered once |
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from skep.coordination.share.share_state import DeliveryState

_FIRST = attrgetter("first")

OffsetRange = tuple[int, int]
"""The first and the last offset, both inclusive."""


class Run(NamedTuple):
    """The offsets from ``first`` to ``last``, both inclusive, and what is true of each of them."""

    first: int
    last: int
    state: DeliveryState
    delivery_count: int = 0
    member: str = ""
    """Who has acquired it."""
    due: float = 0.0
    """When the lock of an acquired run expires."""
    size: int = 0
    """How many records were delivered together the first time. Records that fail again and again are delivered in
    fractions of this."""
    target: DeliveryState | None = None
    """Set while the result of an acquired run is being written: the state that it has once the write is committed."""

    @property
    def outcome(self) -> DeliveryState:
        """The state after the pending write, if there is one."""
        return self.state if self.target is None else self.target

    @property
    def is_held(self) -> bool:
        """Whether a member has it and has not said what became of it."""
        return self.state is DeliveryState.ACQUIRED and self.target is None


Changed = Callable[[Run], Run]


class DeliveryRuns:
    """Owns the runs. Between calls they are ascending, follow each other without a gap from ``start`` to ``end`` (which
    is exclusive), and no two neighbours could be one."""

    __slots__ = ("_runs", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self._runs: list[Run] = []

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def between(self, first: int, last: int) -> list[Run]:
        """Returns the runs of these offsets, cut to them; none if ``last`` is below ``first``."""
        if last < first:
            return []
        found = self._runs[self._index(first) : self._index(last) + 1]
        return [_cut(run, max(run.first, first), min(run.last, last)) for run in found]

    def append(self, run: Run) -> None:
        assert run.first == self.end and run.first <= run.last
        self.end = run.last + 1
        _add(self._runs, run)

    def change(self, first: int, last: int, changed: Changed) -> None:
        """Replaces each run of these offsets, cut to them, by what ``changed`` returns. It keeps first and last."""
        self.change_each([(first, last, changed)])

    def change_each(self, changes: Sequence[tuple[int, int, Changed]]) -> None:
        """Makes many changes, which are ascending and disjoint, in one pass.

        A member may acknowledge thousands of records in as many ways, and each of them may divide a run.
        """
        if not changes:
            return
        runs = self._runs
        number = begin = self._index(changes[0][0])
        out = runs[begin - 1 : begin]
        begin -= len(out)
        run: Run | None = runs[number]
        for first, last, changed in changes:
            while run is not None and run.last < first:
                _add(out, run)
                number, run = number + 1, runs[number + 1]
            while run is not None and run.first <= last:
                if run.first < first:
                    _add(out, _cut(run, run.first, first - 1))
                    run = _cut(run, first, run.last)
                if run.last > last:
                    _add(out, changed(_cut(run, run.first, last)))
                    run = _cut(run, last + 1, run.last)
                    break
                _add(out, changed(run))
                number += 1
                run = runs[number] if number < len(runs) else None
        if run is not None:
            _add(out, run)
        for after in runs[number + 1 : number + 2]:
            _add(out, after)
        runs[begin : number + 2] = out

    def overlapping(self, ranges: Iterable[OffsetRange]) -> Iterator[Run]:
        """Yields the whole runs that have offsets of these ranges, which are ascending; each once or more often."""
        runs, number = self._runs, 0
        for first, last in ranges:
            number = bisect_right(runs, first, number, key=_FIRST)
            number = max(0, number - 1)
            while runs[number].last < last:
                yield runs[number]
                number += 1
            yield runs[number]

    def drop_below(self, offset: int) -> None:
        """Moves the start up to ``offset``, and the end too if it is below."""
        if offset <= self.start:
            return
        if offset >= self.end:
            self.start = self.end = offset
            self._runs.clear()
            return
        del self._runs[: self._index(offset)]
        self._runs[0] = self._runs[0]._replace(first=offset)
        self.start = offset

    def _index(self, offset: int) -> int:
        """Returns the number of the run that has ``offset``; the ends are taken as if the runs went on."""
        return max(0, bisect_right(self._runs, offset, key=_FIRST) - 1)


def _add(runs: list[Run], run: Run) -> None:
    """Appends a run, or makes the last one longer."""
    if runs and (before := runs[-1])[2:] == run[2:]:
        runs[-1] = _cut(before, before.first, run.last)
    else:
        runs.append(run)


def _cut(run: Run, first: int, last: int) -> Run:
    """Returns the run with these ends. As ``_replace``, in a fifth of the time."""
    return tuple.__new__(Run, (first, last, *run[2:]))


def done(run: Run, state: DeliveryState) -> Run:
    """Returns the run in a final state."""
    return Run(run.first, run.last, state, run.delivery_count)


def archived(run: Run) -> Run:
    return done(run, DeliveryState.ARCHIVED)


def merged(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges ascending and disjoint; those that follow each other become one."""
    found: list[OffsetRange] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
