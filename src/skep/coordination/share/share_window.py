"""The window of a share partition: which records a share group has in flight, and what becomes of them (KIP-932).

::

    Available --acquire, count + 1--> Acquired --accept--> Acknowledged
        ^                                |  gap --> Archived
        +--- release, lock expired, -----+  reject, or release etc. at the limit --> Archived
             member gone                       with a dead-letter topic --> Archiving --copied--> Archived

The window begins at the first record that is not done with and ends after the last one that was delivered. Both ends
only move forward, unless an operator opens finished records again. Records that are done with stay in the window until
everything before them is done with too, as one run, however many they are. So a record that a member holds for long, or
that waits for its next delivery, does not block others: only records that are acquired, or can be acquired, count
towards the lock limit of the group. Those that wait have a limit of their own.

An acknowledgement (``acknowledge``) takes effect when it is written: until ``commit`` or ``roll_back`` its records
cannot be acquired, acknowledged or passed by the start. Changes without a request (a lock expires, a member leaves)
take effect at once, because no client waits for the result; the caller writes them with the next write. ``to_write``
returns what a new leader should find, as if all pending changes were committed. So they all have to be in one write,
and the next write begins when its result is known.

Nothing here reads a clock or a log. The caller passes the time, and the batches that it has found in the log. Locks are
held until a time of a monotonic clock; the time of the next delivery is one of the wall clock (``now_ms``), because the
next leader has to know it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice

from skep.base.loop.slicer import Work, run_at_once
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.acquisition import Acquired, Acquisition, Order, overlaps
from skep.coordination.share.delivery_rules import DeliveryRules
from skep.coordination.share.delivery_runs import (
    DONE,
    Changed,
    DeliveryOutcome,
    DeliveryRuns,
    Hint,
    OffsetRange,
    Run,
    archived,
    merged,
    settled,
)
from skep.coordination.share.departed_locks import GONE, DepartedLocks
from skep.coordination.share.held_records import check_held, check_not_done, wrong_state
from skep.coordination.share.run_schedule import RunSchedule
from skep.coordination.share.share_state import DeadLetters, DeliveryState, Reason, StateBatch
from skep.coordination.share.window_state import Write, changed_state, restored_runs, whole_state

_AVAILABLE, _ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
_ARCHIVING, _ARCHIVED = DeliveryState.ARCHIVING, DeliveryState.ARCHIVED

_ACCEPTED = DeliveryOutcome(DeliveryState.ACKNOWLEDGED)

MAX_GAP = 500
"""Records that are not acquired but sent, because they are between two that are. Beyond a larger gap nothing is
acquired in the same delivery."""

MAX_RUNS = 65_000
"""With so many runs no new records are acquired. Records that wait (10,000), and those that are acquired (10,000) and
may fail meanwhile, twice as many with what is done with between them, are 60,001."""

RUNS_AT_ONCE = 250
"""What one ``wake`` or ``expire`` changes, in about two milliseconds."""

TIDY_AFTER = 1_000
"""After so many more runs, neighbours that are done with become one, although their counts differ."""


class ShareWindow:
    """Owns the runs. ``rules`` are the group's options; they may change between calls."""

    __slots__ = (
        "_accepted",
        "_deleted_below",
        "_deleted_from",
        "_departed",
        "_died",
        "_dropped",
        "_locks",
        "_opened_from",
        "_runs",
        "_tidied",
        "_tidy_above",
        "_times",
        "rules",
    )

    def __init__(self, start_offset: int, rules: DeliveryRules) -> None:
        self._runs = DeliveryRuns(start_offset)
        self.rules = rules
        self._locks = RunSchedule(self._runs, _lock_of)
        self._departed = DepartedLocks(self._runs)
        self._times = RunSchedule(self._runs, _time_of)
        self._dropped: list[OffsetRange] = []
        self._opened_from: int | None = None
        self._accepted = self._died = self._deleted_below = 0
        self._deleted_from: int | None = None
        """From here to ``_deleted_below`` there may be records that are available, and not in the log."""
        self._tidy_above = TIDY_AFTER
        self._tidied: list[OffsetRange] = []

    @classmethod
    def restored(cls, start_offset: int, batches: Sequence[StateBatch], rules: DeliveryRules) -> "ShareWindow":
        """As ``restoring``, at once."""
        return run_at_once(cls.restoring(start_offset, batches, rules))

    @classmethod
    def restoring(cls, start_offset: int, batches: Sequence[StateBatch], rules: DeliveryRules) -> Work["ShareWindow"]:
        """Returns the window that a previous leader has written. What it had delivered without a result is available.

        Raises UNKNOWN_SERVER_ERROR if the batches overlap or are not ascending.
        """
        window = cls(start_offset, rules)
        for some in restored_runs(start_offset, batches, has_dead_letters=rules.has_dead_letters):
            window._runs.extend(some)
            for run in some:
                if run.is_waiting:
                    window._times.add(run.not_before_ms, run.first, run.last)
            yield
        window._advance()
        window._tidy_above = len(window._runs) + TIDY_AFTER
        return window

    @property
    def start_offset(self) -> int:
        """Everything below is done with. Kafka: SPSO."""
        return self._runs.start

    @property
    def end_offset(self) -> int:
        """The first offset that was never delivered. Kafka: SPEO + 1."""
        return self._runs.end

    @property
    def runs(self) -> Iterator[Run]:
        """The runs from the start to the end, ascending, without gaps."""
        return iter(self._runs)

    @property
    def waiting(self) -> int:
        """The number of records that wait for the time of their next delivery."""
        return self._runs.waiting

    @property
    def archiving(self) -> int:
        """The number of records whose dead letter is not written."""
        return self._runs.archiving

    @property
    def delivery_complete_count(self) -> int:
        """The number of offsets in the window that need no further delivery (KIP-1226)."""
        return sum(run.last - run.first + 1 for run in self._runs if run.state in DONE)

    # Acquiring.

    @property
    def next_fetch_offset(self) -> int:
        """The first offset that can be acquired."""
        return self._runs.first_ready

    @property
    def can_acquire(self) -> bool:
        """Whether there may be records for a member: available ones, or room for new ones."""
        return self._room > 0 or self.next_fetch_offset < self._runs.end

    @property
    def _room(self) -> int:
        """The number of new records that may be acquired."""
        runs = self._runs
        if runs.waiting >= self.rules.max_waiting or len(runs) >= MAX_RUNS:
            return 0
        return max(0, self.rules.max_locks - runs.locked - runs.archiving)

    @property
    def look_ahead_end(self) -> int:
        """Up to where ``include`` may go."""
        return self._runs.end + self._room

    def include(self, end_offset: int) -> None:
        """Takes new records below ``end_offset`` into the window, as far as there is room. They can be acquired later,
        in any order."""
        end = min(end_offset, self.look_ahead_end)
        if end > self._runs.end:
            self._runs.append(Run(self._runs.end, end - 1, _AVAILABLE))

    def runs_from(self, offset: int) -> Iterator[Run]:
        """The runs from an offset on; the first one is cut. The window must not change meanwhile."""
        return self._runs.walk(offset, self._runs.end)

    def take_opened(self) -> int | None:
        """Returns the first offset that was opened again since the last call; None if there was none."""
        opened, self._opened_from = self._opened_from, None
        return opened

    def reach(self, max_records: int) -> int:
        """Returns the last offset that an ``acquire`` of ``max_records`` from ``next_fetch_offset`` on may need. Its
        caller need not look for batches that begin after it."""
        left, last = max_records, self._runs.end - 1
        is_first = True
        for run in self._runs.ready():
            if not is_first and run.first - last > MAX_GAP:
                return last
            if run.is_ready:
                last = min(run.last, run.first + left - 1)
                left -= last - run.first + 1
                is_first = False
                if left <= 0:
                    return last
        if not self._room or self._runs.end - last > MAX_GAP:
            return last
        return self._runs.end + min(left, self._room) - 1

    def acquire(
        self,
        order: Order,
        batches: Sequence[OffsetRange],
        due: float,
        *,
        aborted: Sequence[OffsetRange] = (),
        expired: Sequence[OffsetRange] = (),
        only: Sequence[OffsetRange] | None = None,
    ) -> list[Acquired]:
        """Gives available records to a member until ``due``, ascending and disjoint.

        ``batches`` are those that a read of the log from ``next_fetch_offset`` on has found, ``aborted`` those of them
        that a read_committed group does not get, ``expired`` those that are too old. What is available but no longer in
        the log is archived. So are aborted batches, instead of being acquired. Those that are too old are given up
        (``take_dropped``).

        ``only`` are the offsets that may be acquired, ascending and in the window (``include``): the group is ordered
        by key. The read of the log began with the first of them.
        """
        if not batches or order.max_records <= 0:
            return []
        runs, position = self._runs, self.next_fetch_offset if only is None else only[0][0]
        base, last = batches[0][0], batches[-1][1]
        if last < position:
            return []
        if base > position:
            # Compaction has removed what was there. A hole takes no room, however large it is.
            self._archive_available(position, min(base, runs.end) - 1)
            if base > runs.end:
                runs.append(Run(runs.end, base - 1, _ARCHIVED))
            self._advance()
        room = self._room
        taking = Acquisition(order, batches, due, self._to_drop(aborted, expired), only)
        for run in runs.walk(position, last):
            if taking.left <= 0 or (run.is_ready and not taking.offer(run, self.rules.isolated_size)):
                break
        known = len(taking.changes)
        if only is None and taking.left > 0 and not taking.is_isolated and last >= runs.end and room > 0:
            run = Run(runs.end, last, _AVAILABLE)
            taking.take(Run(run.first, taking.last_of(run, min(taking.left, room)), _AVAILABLE))
        runs.change_each(taking.changes[:known])
        runs.extend([changed(Run(first, last, _AVAILABLE)) for first, last, changed in taking.changes[known:]])
        if taking.acquired:
            self._locks.add(due, taking.acquired[0].first, taking.acquired[-1].last)
            self._locks.tidy()
        if expired:
            self._dropped += overlaps([(first, last) for first, last, _ in taking.changes], expired)
        self._advance()
        return taking.acquired

    def _to_drop(
        self, aborted: Sequence[OffsetRange], expired: Sequence[OffsetRange]
    ) -> Sequence[tuple[int, int, Changed]]:
        dropped: list[tuple[int, int, Changed]] = [(first, last, archived) for first, last in aborted]
        if not expired:
            return dropped
        known = set(aborted)
        dropped += [(first, last, self._expired) for first, last in expired if (first, last) not in known]
        return sorted(dropped, key=lambda drop: drop[0])

    def _expired(self, run: Run) -> Run:
        return settled(run, self.rules.given_up(Reason.EXPIRED, run.failures))

    def take_dropped(self) -> list[OffsetRange]:
        """Returns what was given up instead of being acquired since the last call, and has to be written."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _archive_available(self, first: int, last: int) -> None:
        if first <= last:
            self._runs.change(first, last, lambda run: archived(run) if run.state is _AVAILABLE else run)

    # Times.

    @property
    def next_due(self) -> float | None:
        """When ``expire`` has something to do: the first lock expires, or it has not released everything."""
        return 0.0 if self._departed else self._locks.next()

    @property
    def next_time_ms(self) -> int | None:
        """When the first of the records that wait is ready."""
        moment = self._times.next()
        return None if moment is None else int(moment)

    def wake(self, now_ms: int) -> bool:
        """Makes records ready whose time has come; if they are very many, some of them. Returns whether there were
        any."""
        due = self._times.take_due(now_ms, RUNS_AT_ONCE)
        self._change_each(due, _ready)
        return bool(due)

    def holder(self, offset: int, delivery_count: int) -> str | None:
        """Returns the member that holds the record in its delivery of that number; None if there is none."""
        if not self._runs.start <= offset < self._runs.end:
            return None
        [run] = self._runs.between(offset, offset)
        return run.member if run.is_held and run.delivery_count == delivery_count else None

    def delay(self, offset: int, hint: Hint, member: str | None = None) -> None:
        """Stores what a member reports about a record that it holds, in case the delivery fails.

        Raises INVALID_RECORD_STATE if no member holds the record, or another one.
        """
        [run] = self._runs.between(offset, offset) if self._runs.start <= offset < self._runs.end else [None]
        if run is None or not run.is_held:
            raise wrong_state(f"offset {offset} is not held by a member")
        if member is not None and run.member != member:
            raise wrong_state(f"offset {offset} was acquired by another member")
        self._runs.change(offset, offset, lambda held: held._replace(hint=hint))

    def waits(self, offset: int) -> bool:
        """Whether the record waits for the time of its next delivery."""
        return self._runs.start <= offset < self._runs.end and self._runs.between(offset, offset)[0].is_waiting

    def reschedule(self, offset: int, not_before_ms: int, now_ms: int) -> list[OffsetRange]:
        """Gives a record that waits another time. Returns the offsets that have to be written.

        The next leader finds the later of both times, because a write that is further wins (``state_batches.py``).
        Raises INVALID_RECORD_STATE if it does not wait.
        """
        if not self.waits(offset):
            raise wrong_state(f"offset {offset} does not wait for its next delivery")
        changed = [(offset, offset)]
        if not_before_ms > now_ms:
            self._change_each(changed, lambda run: run._replace(not_before_ms=not_before_ms))
            self._times.add(not_before_ms, offset, offset)
            self._times.tidy()
        else:
            self._change_each(changed, _ready)
        return changed

    # Results.

    def acknowledge(
        self,
        member: str,
        batches: Sequence[Acknowledgement],
        due: float,
        *,
        now_ms: int = 0,
        can_renew: bool = True,
    ) -> list[OffsetRange]:
        """Begins the changes of one request, all or none, and returns the offsets whose result has to be written.

        The batches have passed ``check_acknowledgements``. Records that are deleted from the log are ignored. Renewals
        count at once, until ``due``. Raises INVALID_REQUEST for offsets past the window, INVALID_RECORD_STATE for
        those that the member does not hold.
        """
        start = self._runs.start
        known = batches
        if len(batches) != 1 or not can_renew or not self._runs.held_by(member, batches[0].first, batches[0].last):
            check_not_done(start, self._deleted_below, batches)
            known = [batch for batch in batches if batch.last >= start]
            check_held(self._runs, member, known, can_renew=can_renew)
        changes: list[tuple[int, int, Changed]] = []
        changed = []
        for first, last, kind in chain.from_iterable(batch.by_type() for batch in known):
            if last < start:
                continue
            first = max(first, start)
            if kind == AcknowledgeType.RENEW:
                changes.append((first, last, partial(_renewed, due)))
                self._locks.add(due, first, last)
            else:
                changes.append((first, last, partial(self._aimed, kind, now_ms)))
                changed.append((first, last))
        self._runs.change_each(changes)
        self._locks.tidy()
        return changed

    def _aimed(self, kind: int, now_ms: int, run: Run) -> Run:
        if kind == AcknowledgeType.ACCEPT:
            target = _ACCEPTED
            self._accepted += run.last - run.first + 1
        elif kind == AcknowledgeType.RELEASE:
            target = self._counted(run, self.rules.returned(run, now_ms, has_failed=True))
        elif kind == AcknowledgeType.REJECT:
            target = self._counted(run, self.rules.rejected(run))
        else:
            target = DeliveryOutcome(_ARCHIVED)
        first, last, state, count, member, due, size, _, failures, not_before_ms, reason, hint = run
        return Run(first, last, state, count, member, due, size, target, failures, not_before_ms, reason, hint)

    def _counted(self, run: Run, outcome: DeliveryOutcome) -> DeliveryOutcome:
        if outcome.state is not _AVAILABLE:
            self._died += run.last - run.first + 1
        return outcome

    def take_finished(self) -> tuple[int, int]:
        """Returns how many records were accepted, and how many were given up after a delivery, since the last call.

        They are counted when members acknowledge, before the write: for statistics only.
        """
        finished = self._accepted, self._died
        self._accepted = self._died = 0
        return finished

    def commit(self, ranges: Sequence[OffsetRange]) -> None:
        """The result of these offsets, as ``acknowledge`` has returned them, is written."""
        self._runs.change_each([(first, last, self._committed) for first, last in self._in_window(ranges)])
        self._times.tidy()
        self._advance()

    def _committed(self, run: Run) -> Run:
        return self._settled(run, run.outcome)

    def _settled(self, run: Run, outcome: DeliveryOutcome) -> Run:
        if outcome.not_before_ms:
            self._times.add(outcome.not_before_ms, run.first, run.last)
        if run.first < self._deleted_below and outcome.state is _AVAILABLE:
            self._deleted_from = run.first if self._deleted_from is None else min(run.first, self._deleted_from)
        return settled(run, outcome)

    def roll_back(self, ranges: Sequence[OffsetRange], now: float, *, now_ms: int = 0) -> list[OffsetRange]:
        """The result could not be written: the member holds the records again, unless its lock has expired meanwhile,
        or it is gone.

        Returns the offsets that were released because of that; if they are very many, a part, and ``expire`` goes on.
        """
        known = list(self._in_window(ranges))
        self._runs.change_each([(first, last, _rolled_back) for first, last in known])
        for first, last in known:
            self._locks.add_runs(first, last)
            self._departed.add_rolled_back(first, last)
        self._locks.tidy()
        return self.expire(now, now_ms=now_ms)

    def release(self, member: str, *, now_ms: int = 0) -> list[OffsetRange]:
        """The member is gone: releases what it holds and returns it; if it is very much, a part of it, and ``expire``
        goes on. What it has acknowledged is released too if the write fails."""
        self._departed.add(member)
        return self._release_departed(now_ms)

    @property
    def is_releasing(self) -> bool:
        """Whether something of a member that is gone is not released yet."""
        return len(self._departed) > 0

    def _release_departed(self, now_ms: int) -> list[OffsetRange]:
        released = self._departed.take(RUNS_AT_ONCE)
        self._release(released, now_ms, has_failed=False)
        return released

    def expire(self, now: float, *, now_ms: int = 0) -> list[OffsetRange]:
        """Releases what is held past its time, or by members that are gone, and returns it; if it is very much, a part
        of it. Those that are gone come first: a lock of theirs that expires meanwhile is no failure."""
        departed = self._release_departed(now_ms) if self._departed else []
        if self._departed:
            return departed
        expired = merged(self._locks.take_due(now, RUNS_AT_ONCE))
        self._release(expired, now_ms, has_failed=True)
        return [*departed, *expired]

    def _release(self, ranges: Sequence[OffsetRange], now_ms: int, *, has_failed: bool) -> None:
        def returned(run: Run) -> Run:
            return self._settled(run, self._counted(run, self.rules.returned(run, now_ms, has_failed=has_failed)))

        self._change_each(ranges, returned)
        self._times.tidy()
        self._advance()

    def _change_each(self, ranges: Sequence[OffsetRange], changed: Changed) -> None:
        self._runs.change_each([(first, last, changed) for first, last in merged(ranges)])

    def dead_letters(self, most: int | None = None) -> list[DeadLetters]:
        """Returns the records whose dead letter is not written, as ``most`` runs at most."""
        if not self._runs.archiving:
            return []
        dying = (run for run in self._runs if run.state is _ARCHIVING)
        return [
            DeadLetters(run.first, run.last, run.reason, run.delivery_count, run.hint.text if run.hint else "")
            for run in islice(dying, most)
        ]

    def archive(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The dead letters of these offsets are written. Returns those of them that were not archived before."""
        walked = (run for first, last in merged(ranges) for run in self._runs.walk(first, last))
        changed = [(run.first, run.last) for run in walked if run.state is _ARCHIVING]
        self._change_each(changed, archived)
        self._advance()
        return changed

    @property
    def is_passing_deleted(self) -> bool:
        """Whether ``log_start_moved`` has to be called again before records are acquired."""
        return self._deleted_from is not None

    def log_start_moved(self, log_start_offset: int) -> list[OffsetRange]:
        """The records below are deleted. Returns offsets whose result has to be written.

        If the group has dead letters, a record that was delivered and is not done with is given up and gets one,
        without the record. A member that holds one keeps it and may acknowledge it; if it is released, the next call
        gives it up. Records that were never delivered get no letter: a group that is far behind would have millions.
        The window begins with what is left, or at the log start. Of very many, one call passes a part
        (``is_passing_deleted``).
        """
        runs = self._runs
        if log_start_offset > self._deleted_below:
            self._deleted_below = log_start_offset
            needed = filter(self.rules.outlives_its_record, runs.walk(runs.start, log_start_offset - 1))
            runs.drop_below(next((run.first for run in needed), log_start_offset))
            if runs.end < log_start_offset:
                runs.append(Run(runs.end, log_start_offset - 1, _ARCHIVED))
            self._deleted_from = runs.start
        if self._deleted_from is None:
            return []
        left = (run for run in runs.walk(self._deleted_from, self._deleted_below - 1) if run.state is _AVAILABLE)
        some = list(islice(left, RUNS_AT_ONCE))
        self._deleted_from = some[-1].last + 1 if len(some) == RUNS_AT_ONCE else None
        runs.change_each([(run.first, run.last, self._deleted) for run in some])
        self._advance()
        return [(run.first, run.last) for run in filter(self.rules.outlives_its_record, some)]

    def _deleted(self, run: Run) -> Run:
        is_given_up = self.rules.outlives_its_record(run)
        return settled(run, self.rules.given_up(Reason.DELETED, run.failures)) if is_given_up else archived(run)

    def _advance(self) -> None:
        """Moves the start past everything that is done with."""
        self._runs.advance()

    def _in_window(self, ranges: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
        start = self._runs.start
        return ((max(first, start), last) for first, last in sorted(ranges) if last >= start)

    # Writing.

    def to_write(self, ranges: Sequence[OffsetRange]) -> Write:
        """Returns the state to be written for all changes in ``ranges``, with the start where it will be."""
        runs = self._runs
        if len(runs) > self._tidy_above:
            self._tidied += runs.coalesce()
            self._tidy_above = len(runs) + TIDY_AFTER
        return changed_state(runs, [*ranges, *self._tidied])

    def finished(self, ranges: Sequence[OffsetRange], log_start_offset: int) -> list[OffsetRange]:
        """Returns those of these offsets that are done with and in the log, ascending. Their results are written, apart
        from those that are pending."""
        start, found = self._runs.start, []
        for first, last in merged(ranges):
            first = max(first, log_start_offset)
            if first < start and first <= last:
                found.append((first, min(last, start - 1)))
            found += [(run.first, run.last) for run in self._runs.walk(first, last) if run.state in DONE]
        return merged(found)

    def opened(self, ranges: Sequence[OffsetRange]) -> Write:
        """Returns the whole state as it is after ``open``, and as if all pending changes were committed."""
        runs = self._runs.copy()
        runs.open(ranges)
        return whole_state(runs)

    def open(self, ranges: Sequence[OffsetRange]) -> None:
        """Makes offsets that are done with available again, with no deliveries. The start may move back."""
        self._runs.open(ranges)
        for first, _ in ranges[:1]:
            self._opened_from = first if self._opened_from is None else min(first, self._opened_from)

    def written(self) -> None:
        """What ``to_write`` has returned is committed."""
        self._tidied = []


def _lock_of(run: Run) -> float | None:
    return run.due if run.is_held and run.due != GONE else None


def _time_of(run: Run) -> float | None:
    return run.not_before_ms if run.is_waiting else None


def _renewed(due: float, run: Run) -> Run:
    return run._replace(due=due)


def _ready(run: Run) -> Run:
    return run._replace(not_before_ms=0)


def _rolled_back(run: Run) -> Run:
    return run._replace(target=None)
