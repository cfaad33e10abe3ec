"""The offsets of a share partition that are in flight, as runs of offsets in the same state.

A thousand records that were fetched together are one run, and stay one until somebody treats them differently. So the
memory and the work follow the number of differences, not the number of records::

    start                                                    end
    | ACKNOWLEDGED 0-499 | ACQUIRED 500-999 by m1 | AVAILABLE 1000-1003, delivered once |
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
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
        return [_cut(run, first, last) for run in self._runs[self._index(first) : self._index(last) + 1]]

    def append(self, run: Run) -> None:
        assert run.first == self.end and run.first <= run.last
        self.end = run.last + 1
        self._splice(len(self._runs), len(self._runs), [run])

    def change(self, first: int, last: int, changed: Callable[[Run], Run]) -> None:
        """Replaces each run of these offsets, cut to them, by what ``changed`` returns. It keeps first and last."""
        runs = self._runs
        begin, end = self._index(first), self._index(last) + 1
        pieces = [changed(_cut(run, first, last)) for run in runs[begin:end]]
        if (before := runs[begin]).first < first:
            pieces.insert(0, before._replace(last=first - 1))
        if (after := runs[end - 1]).last > last:
            pieces.append(after._replace(first=last + 1))
        self._splice(begin, end, pieces)

    def put(self, run: Run) -> None:
        """Replaces what is known of the run's offsets."""
        self.change(run.first, run.last, lambda piece: run._replace(first=piece.first, last=piece.last))

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

    def _splice(self, begin: int, end: int, pieces: list[Run]) -> None:
        """Replaces the runs from ``begin`` to ``end``, and merges the pieces with each other and their neighbours."""
        runs = self._runs
        if begin > 0:
            begin -= 1
            pieces.insert(0, runs[begin])
        if end < len(runs):
            pieces.append(runs[end])
            end += 1
        merged = pieces[:1]
        for piece in pieces[1:]:
            before = merged[-1]
            if piece[2:] == before[2:]:
                merged[-1] = before._replace(last=piece.last)
            else:
                merged.append(piece)
        runs[begin:end] = merged


def _cut(run: Run, first: int, last: int) -> Run:
    if first <= run.first and run.last <= last:
        return run
    return run._replace(first=max(run.first, first), last=min(run.last, last))


def done(run: Run, state: DeliveryState) -> Run:
    """Returns the run in a final state."""
    return Run(run.first, run.last, state, run.delivery_count)


def merged(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges ascending and disjoint; those that follow each other become one."""
    found: list[OffsetRange] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
