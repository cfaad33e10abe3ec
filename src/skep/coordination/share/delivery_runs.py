"""The offsets of a share partition that are in flight, as runs of offsets in the same state.

A thousand records that were fetched together are one run, until some of them change their state. So memory and work are
proportional to the number of runs, not of records::

    start                                                    end
    | ACKNOWLEDGED 0-499 | ACQUIRED 500-999 by m1 | AVAILABLE 1000-1003, delivered once |

A record that waits for its next delivery, or that a member holds for long, may be far behind the others, so there may
be tens of thousands of runs. What is asked for with every fetch is counted as the runs change, not by visiting them.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from skep.coordination.share.share_state import DeliveryState, Reason

_FIRST = attrgetter("first")
_AVAILABLE, _ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
_ARCHIVING, _ARCHIVED = DeliveryState.ARCHIVING, DeliveryState.ARCHIVED
DONE = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)

_MANY_TIMES = 16
"""Visiting so many runs in order costs about as much as finding the place of one change."""

OffsetRange = tuple[int, int]
"""The first and the last offset, both inclusive."""


class DeliveryOutcome(NamedTuple):
    """What has become of a delivery."""

    state: DeliveryState
    failures: int = 0
    not_before_ms: int = 0
    reason: Reason = Reason.NONE


class Hint(NamedTuple):
    """What a member has reported about a delivery, in case it fails."""

    delay_ms: int | None = None
    """How long the record waits then, instead of what the group's options say."""
    text: str = ""
    """Why it fails, for the dead-letter topic."""


class Run(NamedTuple):
    """The offsets from ``first`` to ``last``, both inclusive, and what is true of each of them."""

    first: int
    last: int
    state: DeliveryState
    delivery_count: int = 0
    member: str = ""
    """The member that has acquired it."""
    due: float = 0.0
    """When the lock of an acquired run expires."""
    size: int = 0
    """How many records were delivered together the first time. Records that fail again and again are delivered in
    fractions of this."""
    target: DeliveryOutcome | None = None
    """Set while the result of an acquired run is being written: what it has once the write is committed."""
    failures: int = 0
    not_before_ms: int = 0
    """Of an available run: it waits until this time of the wall clock; 0 if it does not wait."""
    reason: Reason = Reason.NONE
    hint: Hint | None = None

    @property
    def outcome(self) -> DeliveryOutcome:
        """What it has after the pending write, if there is one."""
        if self.target is not None:
            return self.target
        return DeliveryOutcome(self.state, self.failures, self.not_before_ms, self.reason)

    @property
    def is_held(self) -> bool:
        """Whether a member has acquired it and has not acknowledged it."""
        return self.state is _ACQUIRED and self.target is None

    @property
    def is_ready(self) -> bool:
        """Whether it can be acquired now."""
        return self.state is _AVAILABLE and not self.not_before_ms

    @property
    def is_waiting(self) -> bool:
        """Whether it can be acquired later."""
        return self.state is _AVAILABLE and self.not_before_ms > 0


_STATE, _NOT_BEFORE = (Run._fields.index(name) for name in ("state", "not_before_ms"))

Changed = Callable[[Run], Run]


class DeliveryRuns:
    """Owns the runs. Between calls they are ascending, follow each other without a gap from ``start`` to ``end`` (which
    is exclusive), and no two neighbours could be one.

    ``locked``, ``waiting``, ``archiving`` and ``complete`` are numbers of offsets: those that are acquired or ready to
    be, those that wait, those whose dead letter is not written, and those that are done with once the pending results
    are written. No run that is ready begins before ``_ready_from``.
    """

    __slots__ = ("_ready_from", "_runs", "archiving", "complete", "end", "locked", "start", "waiting")

    def __init__(self, start: int) -> None:
        self.start = self.end = self._ready_from = start
        self._runs: list[Run] = []
        self.locked = self.waiting = self.archiving = self.complete = 0

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

    def walk(self, first: int, last: int) -> Iterator[Run]:
        """As ``between``, one at a time. The runs must not change meanwhile."""
        first, last = max(first, self.start), min(last, self.end - 1)
        if last < first:
            return
        for number in range(self._index(first), len(self._runs)):
            run = self._runs[number]
            if run.first > last:
                return
            yield (
                run
                if first <= run.first and run.last <= last
                else _cut(run, max(run.first, first), min(run.last, last))
            )

    def held_by(self, member: str, first: int, last: int) -> bool:
        """Whether these offsets are in one run, which the member holds. False may also mean: in several runs."""
        if not self.start <= first <= last < self.end:
            return False
        run = self._runs[self._index(first)]
        return last <= run.last and run.is_held and run.member == member

    @property
    def first_ready(self) -> int:
        """The first offset that is ready; the end if none is."""
        runs, ready_from = self._runs, self._ready_from
        if ready_from < self.end:
            for number in range(self._index(ready_from), len(runs)):
                run = runs[number]
                if run.state is _AVAILABLE and not run.not_before_ms:
                    self._ready_from = run.first
                    return run.first
            self._ready_from = self.end
        return self.end

    def ready(self) -> Iterator[Run]:
        """Yields the runs from the first that is ready on, ready or not."""
        runs = self._runs
        for number in range(self._index(self._ready_from), len(runs)):
            if runs[number].is_ready:
                self._ready_from = runs[number].first
                yield from (runs[n] for n in range(number, len(runs)))
                return
        self._ready_from = self.end

    def append(self, run: Run) -> None:
        assert run.first == self.end and run.first <= run.last
        self.end = run.last + 1
        self._count([run], 1)
        _add(self._runs, run)

    def extend(self, runs: Sequence[Run]) -> None:
        """As ``append`` for each of many."""
        self._count(runs, 1)
        for run in runs:
            _add(self._runs, run)
        self.end = runs[-1].last + 1 if runs else self.end

    def prepend(self, runs: Sequence[Run]) -> None:
        """Moves the start back, to the first of these runs. They end where the others begin."""
        out: list[Run] = []
        for run in (*runs, *self._runs[:1]):
            _add(out, run)
        self.start = out[0].first
        self._splice(0, min(1, len(self._runs)), out)

    def open(self, ranges: Sequence[OffsetRange]) -> None:
        """Makes those of these offsets that are done with available, as if they had never been delivered. They are
        ascending and disjoint, and may be below the start, which moves back then."""
        start = self.start
        below = [(first, min(last, start - 1)) for first, last in ranges if first < start]
        if below:
            self.prepend(list(_opened_below(below, start)))
        self.change_each([(max(first, start), last, _opened) for first, last in ranges if last >= start])

    def copy(self) -> "DeliveryRuns":
        other = DeliveryRuns(self.start)
        other._runs, other.end, other._ready_from = list(self._runs), self.end, self._ready_from
        other.locked, other.waiting = self.locked, self.waiting
        other.archiving, other.complete = self.archiving, self.complete
        return other

    def coalesce(self) -> list[OffsetRange]:
        """Makes neighbours that are done with one run each, with the furthest state and the highest count of them, and
        returns those runs. As states that are written later, they win over all that were written before."""
        out: list[Run] = []
        changed: list[OffsetRange] = []
        for run in self._runs:
            if out and run.state in DONE and (before := out[-1]).state in DONE:
                state = max(before.state, run.state)
                out[-1] = Run(before.first, run.last, state, max(before.delivery_count, run.delivery_count))
                if changed and changed[-1][0] == before.first:
                    changed.pop()
                changed.append((before.first, run.last))
            else:
                out.append(run)
        self._runs = out
        return changed

    def advance(self) -> None:
        """Moves the start past everything that is done with."""
        runs = self._runs
        if not runs or runs[0].state not in DONE:
            return
        start = runs[0].last + 1
        for run in islice(runs, 1, None):
            if run.state not in DONE:
                break
            start = run.last + 1
        self.drop_below(start)

    def _splice(self, begin: int, end: int, runs: list[Run]) -> None:
        """Puts other runs in the place of some."""
        self._count(self._runs[begin:end], -1)
        self._count(runs, 1)
        self._runs[begin:end] = runs

    def _count(self, runs: Iterable[Run], sign: int) -> None:
        # By numbers: this is done for every change, and names take twice as long.
        for run in runs:
            state, size = run[_STATE], sign * (run[1] - run[0] + 1)
            if state is _ACQUIRED:
                self.locked += size
                target = run.target
                if target is not None and target.state in DONE:
                    self.complete += size
            elif state in DONE:
                self.complete += size
            elif state is _ARCHIVING:
                self.archiving += size
            elif run[_NOT_BEFORE]:
                self.waiting += size
            else:
                self.locked += size
                if sign > 0 and run[0] < self._ready_from:
                    self._ready_from = run[0]

    def change(self, first: int, last: int, changed: Changed) -> None:
        """Replaces each run of these offsets, cut to them, by what ``changed`` returns. It keeps first and last."""
        self.change_each([(first, last, changed)])

    def change_each(self, changes: Sequence[tuple[int, int, Changed]]) -> None:
        """Makes many changes, which are ascending and disjoint, in one pass.

        A member may acknowledge thousands of records in as many ways, and each of them may divide a run.
        """
        if not changes:
            return
        if len(changes) == 1 and self._change_one(*changes[0]):
            return
        if len(changes) > 1 and self._index(changes[-1][1]) - self._index(changes[0][0]) > _MANY_TIMES * len(changes):
            for change in changes:
                self._change([change])
        else:
            self._change(changes)

    def _change_one(self, first: int, last: int, changed: Changed) -> bool:
        """Makes a change within one run. Returns False, and has done nothing, if it is of several.

        That is the most frequent change: what was delivered together is accepted together, or one after the other.
        """
        runs, number = self._runs, self._index(first)
        run = runs[number]
        if not run.first <= first <= last <= run.last:
            return False
        piece = run if run.first == first and run.last == last else _cut(run, first, last)
        after = changed(piece)
        self._count((piece,), -1)
        self._count((after,), 1)
        begin = max(0, number - 1)
        out = runs[begin:number]
        if run.first < first:
            _add(out, _cut(run, run.first, first - 1))
        _add(out, after)
        if last < run.last:
            _add(out, _cut(run, last + 1, run.last))
        for following in runs[number + 1 : number + 2]:
            _add(out, following)
        runs[begin : number + 2] = out
        return True

    def _change(self, changes: Sequence[tuple[int, int, Changed]]) -> None:
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
        self._splice(begin, number + 2, out)

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
            self._splice(0, len(self._runs), [])
            self.start = self.end = self._ready_from = offset
            return
        number = self._index(offset)
        if (run := self._runs[number]).first == offset:
            self._splice(0, number, [])
        else:
            self._splice(0, number + 1, [_cut(run, offset, run.last)])
        self.start = offset

    def _index(self, offset: int) -> int:
        """Returns the number of the run that has ``offset``; the ends are taken as if the runs went on."""
        runs = self._runs
        if not runs or offset <= runs[0].last:
            return 0
        return bisect_right(runs, offset, 1, key=_FIRST) - 1


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
    return done(run, _ARCHIVED)


def settled(run: Run, outcome: DeliveryOutcome) -> Run:
    """Returns the run after its delivery has ended."""
    state, failures, not_before_ms, reason = outcome
    if state in DONE:
        return done(run, state)
    first, last, _, count, _, _, size, *_, hint = run
    if state is _AVAILABLE:
        return Run(first, last, state, count, "", 0.0, size, None, failures, not_before_ms)
    text = Hint(text=hint.text) if hint is not None and hint.text else None
    return Run(first, last, state, count, failures=failures, reason=reason, hint=text)


def _opened(run: Run) -> Run:
    return Run(run.first, run.last, _AVAILABLE, size=run.last - run.first + 1) if run.state in DONE else run


def _opened_below(ranges: Sequence[OffsetRange], end: int) -> Iterator[Run]:
    """Yields the runs from the first of these offsets up to ``end``: those are available, the others done with."""
    position = ranges[0][0]
    for first, last in ranges:
        if first > position:
            yield Run(position, first - 1, _ARCHIVED)
        yield Run(first, last, _AVAILABLE, size=last - first + 1)
        position = last + 1
    if position < end:
        yield Run(position, end - 1, _ARCHIVED)


def merged(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges ascending and disjoint; those that follow each other become one."""
    found: list[OffsetRange] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
