"""The window of a share partition: which records a share group has in flight, and what becomes of them (KIP-932).

::

    Available --acquire, count + 1--> Acquired --accept--> Acknowledged
        ^                                |  reject, gap --> Archived
        +--- release, lock expired, -----+  release etc. at the delivery limit --> Archived
             member gone

The window begins at the first record that is not done with and ends after the last one that was delivered. Both ends
only move forward. Records that are done with stay in the window until everything before them is done with too.

What a member says (``acknowledge``) counts when it is written: until ``commit`` or ``roll_back`` its records cannot be
acquired, acknowledged or passed by the start. What happens without a member's request (a lock expires, the member is
gone) counts at once, because there is nobody to tell of a failed write; the caller writes it with the next one.
``to_write`` returns what a new leader should find, as if all pending changes were committed. So they all have to be in
one write, and the next write begins when its result is known.

Nothing here reads a clock or a log. The caller passes the time, and the batches that it has found in the log.

Left out
    The dead-letter queue (KIP-1191). A record in state ``ARCHIVING`` is taken as archived.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.acquisition import Acquired, Acquisition, Order
from skep.coordination.share.delivery_runs import DeliveryRuns, OffsetRange, Run, archived, done, merged
from skep.coordination.share.share_state import DeliveryState, StateBatch

_AVAILABLE, _ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
_DONE = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)
_LOWEST_ISOLATION_COUNT = 2


class Write(NamedTuple):
    """What has to be written for the changes since the last write."""

    start_offset: int
    delivery_complete_count: int
    batches: list[StateBatch]


class ShareWindow:
    """Owns the runs. ``delivery_limit`` and ``max_locks`` are the group's configs; they may change between calls."""

    __slots__ = ("_runs", "delivery_limit", "max_locks")

    def __init__(self, start_offset: int, delivery_limit: int, max_locks: int) -> None:
        self._runs = DeliveryRuns(start_offset)
        self.delivery_limit = delivery_limit
        self.max_locks = max_locks

    @classmethod
    def restored(
        cls, start_offset: int, batches: Sequence[StateBatch], delivery_limit: int, max_locks: int
    ) -> "ShareWindow":
        """Returns the window that a previous leader has written. What it had delivered without a result is available.

        Raises UNKNOWN_SERVER_ERROR if the batches overlap or are not ascending.
        """
        window = cls(start_offset, delivery_limit, max_locks)
        runs = window._runs
        for first, last, state, delivery_count in batches:
            if last < first or (first < runs.end and len(runs)):
                raise KafkaError(ErrorCode.unknown_server_error, f"the share state has a wrong batch, {first}-{last}")
            if last < start_offset:
                continue
            first = max(first, start_offset)
            if first > runs.end:
                runs.append(Run(runs.end, first - 1, _AVAILABLE, size=first - runs.end))
            if state is DeliveryState.ARCHIVING:
                state = DeliveryState.ARCHIVED
            if state in _DONE:
                runs.append(Run(first, last, state, delivery_count))
            else:
                runs.append(Run(first, last, _AVAILABLE, delivery_count, size=last - first + 1))
        window._advance()
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
    def delivery_complete_count(self) -> int:
        """The number of offsets in the window that need no further delivery (KIP-1226)."""
        return sum(run.last - run.first + 1 for run in self._runs if run.state in _DONE)

    # Acquiring.

    @property
    def next_fetch_offset(self) -> int:
        """The first offset that can be acquired."""
        return next((run.first for run in self._runs if run.state is _AVAILABLE), self._runs.end)

    @property
    def can_acquire(self) -> bool:
        """Whether there may be records for a member: available ones, or room for new ones."""
        return self._room > 0 or self.next_fetch_offset < self._runs.end

    @property
    def _room(self) -> int:
        return self.max_locks - (self._runs.end - self._runs.start)

    def reach(self, max_records: int) -> int:
        """Returns the last offset that an ``acquire`` of ``max_records`` from ``next_fetch_offset`` on may need. Its
        caller need not look for batches that begin after it."""
        left, last = max_records, self.next_fetch_offset
        for run in self._runs:
            if run.state is _AVAILABLE:
                last = min(run.last, run.first + left - 1)
                left -= last - run.first + 1
                if left <= 0:
                    return last
        return self._runs.end + min(left, self._room) - 1 if self._room > 0 else last

    def acquire(
        self,
        order: Order,
        batches: Sequence[OffsetRange],
        due: float,
        *,
        aborted: Sequence[OffsetRange] = (),
    ) -> list[Acquired]:
        """Gives available records to a member until ``due``, ascending and disjoint.

        ``batches`` are those that a read of the log from ``next_fetch_offset`` on has found, ``aborted`` those of them
        that a read_committed group does not get. What is available but no longer in the log is archived. So are
        aborted batches, instead of being acquired.
        """
        if not batches or order.max_records <= 0:
            return []
        runs, position = self._runs, self.next_fetch_offset
        base, last = batches[0][0], batches[-1][1]
        if last < position:
            return []
        room = self._room
        if base > position:
            # Compaction has removed what was there. A hole takes no room, however large it is.
            self._archive_available(position, min(base, runs.end) - 1)
            if base > runs.end:
                runs.append(Run(runs.end, base - 1, DeliveryState.ARCHIVED))
            self._advance()
            room = max(room, self._room)
        taking = Acquisition(order, batches, due, aborted)
        for run in runs.between(max(position, runs.start), min(last, runs.end - 1)) if runs.end > position else ():
            if taking.left <= 0:
                break
            if run.state is _AVAILABLE and not self._take(taking, run):
                break
        if taking.left > 0 and not taking.is_isolated and last >= runs.end and room > 0:
            run = Run(runs.end, last, _AVAILABLE)
            runs.append(run._replace(last=taking.last_of(run, min(taking.left, room))))
            taking.take(run._replace(last=runs.end - 1))
        runs.change_each(taking.changes)
        self._advance()
        return taking.acquired

    def _take(self, taking: Acquisition, run: Run) -> bool:
        """Acquires a run of the window, or its beginning. Returns whether more may follow."""
        most = self._isolated_size(run)
        if most is None:
            taking.take(run._replace(last=taking.last_of(run, taking.left)))
            return True
        # A record that fails a member, or crashes it, fails all that are delivered with it. Alone and in ever smaller
        # parts it cannot take hundreds of good ones to the archive. The last delivery is of one record.
        if not taking.changes:
            taking.take(run._replace(last=min(run.last, run.first + min(most, taking.left) - 1)))
        taking.is_isolated = True
        return False

    def _isolated_size(self, run: Run) -> int | None:
        """Returns how many records of the run may be delivered, with nothing else; None if that is not limited."""
        limit, count = self.delivery_limit, run.delivery_count
        threshold = max(_LOWEST_ISOLATION_COUNT, -(-limit // 2))
        if count < threshold:
            return None
        return 1 if count >= limit - 1 else max(1, run.size >> (count - threshold + 1))

    def _archive_available(self, first: int, last: int) -> None:
        if first <= last:
            self._runs.change(first, last, lambda run: archived(run) if run.state is _AVAILABLE else run)

    # Results.

    def acknowledge(
        self, member: str, batches: Sequence[Acknowledgement], due: float, *, can_renew: bool = True
    ) -> list[OffsetRange]:
        """Begins the changes of one request, all or none, and returns the offsets whose result has to be written.

        The batches have passed ``check_acknowledgements``. What is below the start is ignored. Renewals have their
        effect at once: the locks expire at ``due``. Raises INVALID_REQUEST for offsets past the window, and
        INVALID_RECORD_STATE for those that the member does not hold.
        """
        start = self._runs.start
        known = [batch for batch in batches if batch.last >= start]
        self._check_held(member, known, can_renew=can_renew)
        changes, changed = [], []
        for first, last, kind in chain.from_iterable(batch.by_type() for batch in known):
            if last < start:
                continue
            first = max(first, start)
            if kind == AcknowledgeType.RENEW:
                changes.append((first, last, partial(_renewed, due)))
            else:
                changes.append((first, last, partial(self._aimed, kind)))
                changed.append((first, last))
        self._runs.change_each(changes)
        return changed

    def _check_held(self, member: str, batches: Sequence[Acknowledgement], *, can_renew: bool) -> None:
        """Raises the error of the first batch that has one, as Kafka does."""
        for run in self._runs.overlapping(self._in_flight(batches, can_renew=can_renew)):
            if run.state is not _ACQUIRED:
                raise _wrong_state(f"{run.first}-{run.last} is {run.state.name}, not ACQUIRED")
            if run.target is not None:
                raise _wrong_state(f"{run.first}-{run.last} is being acknowledged already")
            if run.member != member:
                raise _wrong_state(f"{run.first}-{run.last} was acquired by another member")

    def _in_flight(self, batches: Sequence[Acknowledgement], *, can_renew: bool) -> Iterator[OffsetRange]:
        """Yields the offsets of each batch that are in the window."""
        runs, previous_last = self._runs, -1
        for first, last, types in batches:
            if runs.start == runs.end:
                raise _wrong_state(f"{first}-{last} is not in flight")
            if last >= runs.end:
                raise KafkaError(
                    ErrorCode.invalid_request,
                    f"{first}-{last} ends past the records in flight, which end at {runs.end - 1}",
                )
            if first == previous_last:
                raise _wrong_state(f"offset {first} is acknowledged twice")
            if AcknowledgeType.RENEW in types and not can_renew:
                raise _wrong_state("the group does not allow renewals (share.renew.acknowledge.enable)")
            previous_last = last
            yield max(first, runs.start), last

    def _aimed(self, kind: int, run: Run) -> Run:
        if kind == AcknowledgeType.ACCEPT:
            return run._replace(target=DeliveryState.ACKNOWLEDGED)
        is_released = kind == AcknowledgeType.RELEASE
        return run._replace(target=self._released(run) if is_released else DeliveryState.ARCHIVED)

    def _released(self, run: Run) -> DeliveryState:
        return DeliveryState.ARCHIVED if run.delivery_count >= self.delivery_limit else _AVAILABLE

    def commit(self, ranges: Sequence[OffsetRange]) -> None:
        """The result of these offsets, as ``acknowledge`` has returned them, is written."""
        self._runs.change_each([(first, last, _committed) for first, last in self._in_window(ranges)])
        self._advance()

    def roll_back(self, ranges: Sequence[OffsetRange], now: float) -> list[OffsetRange]:
        """The result could not be written: the member holds the records again, unless its lock has expired meanwhile.

        Returns the offsets that were released because of that.
        """
        self._runs.change_each([(first, last, _rolled_back) for first, last in self._in_window(ranges)])
        return self.expire(now)

    def release(self, member: str) -> list[OffsetRange]:
        """The member is gone: releases what it holds and returns it. What it has acknowledged is released too if the
        write fails."""
        acquired = [run for run in self._runs if run.state is _ACQUIRED and run.member == member]
        acknowledged = [(run.first, run.last, partial(_renewed, 0.0)) for run in acquired if run.target is not None]
        self._runs.change_each(acknowledged)
        released = [(run.first, run.last) for run in acquired if run.target is None]
        self._release(released)
        return released

    def expire(self, now: float) -> list[OffsetRange]:
        """Releases what is held past its time and returns it."""
        expired = [(run.first, run.last) for run in self._runs if run.is_held and run.due <= now]
        self._release(expired)
        return expired

    def _release(self, ranges: Sequence[OffsetRange]) -> None:
        changes = [(first, last, lambda run: _settled(run, self._released(run))) for first, last in ranges]
        self._runs.change_each(changes)
        self._advance()

    @property
    def next_due(self) -> float | None:
        """When the first lock expires."""
        return min((run.due for run in self._runs if run.is_held), default=None)

    def log_start_moved(self, log_start_offset: int) -> None:
        """The records below are deleted. Whoever holds one may still acknowledge it, which does nothing."""
        self._runs.drop_below(log_start_offset)
        self._advance()

    def _advance(self) -> None:
        """Moves the start past everything that is done with."""
        start = self._runs.start
        for run in self._runs:
            if run.state not in _DONE:
                break
            start = run.last + 1
        self._runs.drop_below(start)

    def _in_window(self, ranges: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
        start = self._runs.start
        return ((max(first, start), last) for first, last in sorted(ranges) if last >= start)

    # Writing.

    def to_write(self, ranges: Sequence[OffsetRange]) -> Write:
        """Returns the state to be written for all changes in ``ranges``, with the start where it will be."""
        start = self._runs.start
        for run in self._runs:
            if run.outcome not in _DONE:
                break
            start = run.last + 1
        complete = sum(run.last - run.first + 1 for run in self._runs if run.first >= start and run.outcome in _DONE)
        batches: list[StateBatch] = []
        for first, last in merged(ranges):
            if last < start:
                continue
            for run in self._runs.between(max(first, start), last):
                # Without a result the record is available to the next leader, but this delivery counts.
                state = _AVAILABLE if run.outcome is _ACQUIRED else run.outcome
                if batches and batches[-1][1:] == (run.first - 1, state, run.delivery_count):
                    batches[-1] = batches[-1]._replace(last=run.last)
                else:
                    batches.append(StateBatch(run.first, run.last, state, run.delivery_count))
        return Write(start, complete, batches)


def _renewed(due: float, run: Run) -> Run:
    return run._replace(due=due)


def _committed(run: Run) -> Run:
    return _settled(run, run.outcome)


def _rolled_back(run: Run) -> Run:
    return run._replace(target=None)


def _settled(run: Run, state: DeliveryState) -> Run:
    if state is _AVAILABLE:
        return Run(run.first, run.last, state, run.delivery_count, size=run.size)
    return done(run, state)


def _wrong_state(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record_state, why)
