"""The share window against a model that knows one offset at a time, over random schedules with failed writes.

Four groups: one with Kafka's rules, one that retries later, counts failures and has a dead-letter topic, one whose
records that are done with are tidied up all the time, and one in which long work ends after each run, so that
everything else may happen in the midst of it.
"""

import itertools
from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skep.base.errors import KafkaError
from skep.coordination.share import share_window
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.acquisition import Acquired, Order
from skep.coordination.share.delivery_runs import Hint, OffsetRange
from skep.coordination.share.departed_locks import GONE
from skep.coordination.share.share_state import Reason
from skep.coordination.share.share_window import ShareWindow
from tests.unit.coordination.share.window_model import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    CRASH_LIMIT,
    DONE,
    LIMIT,
    LOCK_S,
    RETRIES,
    One,
    WindowModel,
    Write,
    is_in,
    without_counts,
)

MEMBERS = st.sampled_from(["m1", "m2"])
KINDS = st.lists(st.sampled_from(list(AcknowledgeType)), min_size=1, max_size=3)


class WindowMachine(WindowModel, RuleBasedStateMachine):
    tidy_after = share_window.TIDY_AFTER
    runs_at_once = share_window.RUNS_AT_ONCE

    def __init__(self) -> None:
        super().__init__()
        self.patched = ExitStack()
        self.patched.enter_context(patch.object(share_window, "TIDY_AFTER", self.tidy_after))
        self.patched.enter_context(patch.object(share_window, "RUNS_AT_ONCE", self.runs_at_once))
        self.window = ShareWindow(0, self.group)
        self.pending: list[OffsetRange] = []
        self.unwritten: list[OffsetRange] = []
        self.write: Write | None = None
        self.accepted: set[int] = set()
        """What a member was told to be accepted."""

    @initialize(
        sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7), st.booleans()), min_size=25, max_size=25)
    )
    def make_log(self, sizes: list[tuple[int, int, bool]]) -> None:
        self.log: list[OffsetRange] = []
        self.aborted: set[OffsetRange] = set()
        offset = 0
        for hole, size, is_aborted in sizes:
            offset += hole if hole == 2 else 0
            batch = (offset, offset + size - 1)
            self.log.append(batch)
            if is_aborted and size % 3 == 0:
                self.aborted.add(batch)
            offset += size

    def teardown(self) -> None:
        self.patched.close()

    # Acquiring.

    @rule(
        member=MEMBERS,
        max_records=st.integers(1, 12),
        batch_size=st.integers(1, 8),
        is_record_limit=st.booleans(),
        max_batches=st.integers(1, 6),
        reads_committed=st.booleans(),
        is_old=st.sampled_from([False, False, True]),
    )
    def acquire(
        self,
        member: str,
        max_records: int,
        batch_size: int,
        is_record_limit: bool,
        max_batches: int,
        reads_committed: bool,
        is_old: bool,
    ) -> None:
        self.follow_log_start()
        self.advance()
        position = self.window.next_fetch_offset
        assert position == min((offset for offset, one in self.ones.items() if one.is_ready), default=self.end)
        reach = self.window.reach(max_records)
        batches = [batch for batch in self.log if batch[1] >= position and batch[0] <= max(reach, position)]
        batches = batches[:max_batches] or [batch for batch in self.log if batch[1] >= position][:1]
        aborted = [batch for batch in batches if batch in self.aborted] if reads_committed else []
        expired = [batch for batch in batches if sum(batch) % 4 == 0] if is_old else []
        order = Order(member, max_records, batch_size, is_record_limit)
        can_acquire = self.window.can_acquire
        room = self.room() + sum(one.is_ready for one in self.ones.values())
        assert can_acquire == (room > 0)
        acquired = self.window.acquire(order, batches, self.now + LOCK_S, aborted=aborted, expired=expired)
        if not self.room() and batches and batches[0][0] <= position:
            # A hole in the log would make room: what is available in it is archived.
            assert self.window.end_offset == self.end
        self.check_acquired(order, batches, acquired)
        self.adopt_acquired(position, order, batches, aborted, expired, acquired)
        if batches and can_acquire and not acquired:
            assert aborted or expired or batches[0][0] > position

    def check_acquired(self, order: Order, batches: list[OffsetRange], acquired: list[Acquired]) -> None:
        offsets = [offset for first, last, _ in acquired for offset in range(first, last + 1)]
        assert offsets == sorted(set(offsets))
        before = [self.ones.get(offset, One(AVAILABLE)) for offset in offsets]
        if order.is_record_limit:
            assert len(offsets) <= order.max_records
        elif len(offsets) > order.max_records:
            # Only to complete a batch of the log.
            at_limit = offsets[order.max_records - 1]
            (batch,) = (batch for batch in batches if batch[0] <= at_limit <= batch[1])
            assert offsets[-1] <= batch[1]
        is_isolated = any(self.isolation(one)[0] for one in before)
        if is_isolated:
            assert offsets == list(range(offsets[0], offsets[-1] + 1))
            assert len(set(before)) == 1
            assert not self.isolation(before[0])[1] or len(offsets) == 1
        if not order.is_record_limit and not is_isolated:
            for first, last, _ in acquired:
                if last - first >= order.batch_size:
                    # It could not be divided at a batch of the log.
                    assert not any(base - first >= order.batch_size for base, _ in batches if base <= last)

    def adopt_acquired(
        self,
        position: int,
        order: Order,
        batches: list[OffsetRange],
        aborted: list[OffsetRange],
        expired: list[OffsetRange],
        acquired: list[Acquired],
    ) -> None:
        """Checks the change of each offset, and makes it in the model."""
        dropped = self.window.take_dropped()
        self.unwritten += dropped
        given = {offset: count for first, last, count in acquired for offset in range(first, last + 1)}
        assert self.window.end_offset >= self.end
        after = self.view()
        for offset in range(position, max(self.end, self.window.end_offset)):
            before = self.ones.get(offset, One(AVAILABLE))
            if offset in given:
                assert before.is_ready
                assert given[offset] == before.count + 1
                self.ones[offset] = One(
                    ACQUIRED, before.count + 1, order.member, self.now + LOCK_S, failures=before.failures
                )
            elif before.state is AVAILABLE:
                is_gone = bool(batches) and offset < batches[0][0]
                is_aborted = is_in(offset, aborted)
                is_expired = is_in(offset, expired)
                became = after.get(offset, One(ARCHIVED))
                if is_gone:
                    assert became.state is ARCHIVED
                if offset not in self.ones:
                    assert is_gone or is_aborted or is_expired
                if became.state is not AVAILABLE and is_expired and not is_aborted and not is_gone:
                    assert is_in(offset, dropped)
                    self.ones[offset] = self.given_up(before, Reason.EXPIRED, before.failures)
                elif became.state is ARCHIVED:
                    assert is_gone or is_aborted
                    self.ones[offset] = One(ARCHIVED, before.count)
        self.end = max(self.end, self.window.end_offset)
        self.advance()

    # Results.

    @precondition(lambda self: self.held())
    @rule(data=st.data(), kinds=KINDS)
    def acknowledge_what_is_held(self, data: st.DataObject, kinds: list[AcknowledgeType]) -> None:
        first = data.draw(st.sampled_from(self.held()))
        member, length = self.ones[first].member, data.draw(st.integers(1, 10))
        most = next((n for n in range(length) if self.holder(first + n) != member), length)
        is_each = data.draw(st.booleans())
        types = [kinds[number % len(kinds)] for number in range(most if is_each else 1)]
        self.acknowledge(member, [Acknowledgement(first, first + most - 1, types)])

    @precondition(lambda self: self.held())
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 700, 40_000]))
    def set_the_delay_of_one(self, data: st.DataObject, delay_ms: int) -> None:
        offset = data.draw(st.sampled_from(self.held()))
        self.window.delay(offset, Hint(delay_ms), self.ones[offset].member)
        self.ones[offset] = self.ones[offset]._replace(hint_ms=delay_ms)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 700, 40_000]))
    def give_one_that_waits_another_time(self, data: st.DataObject, delay_ms: int) -> None:
        offset = data.draw(st.sampled_from(self.waiting()))
        self.unwritten += self.window.reschedule(offset, self.wall_ms + delay_ms, self.wall_ms)
        self.ones[offset] = self.ones[offset]._replace(not_before_ms=self.wall_ms + delay_ms if delay_ms else 0)

    @precondition(lambda self: self.held() and self.write is None)
    @rule(kind=st.sampled_from([AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE]), is_committed=st.booleans())
    def acknowledge_all_and_write(self, kind: AcknowledgeType, is_committed: bool) -> None:
        for offset in self.held():
            self.acknowledge(self.ones[offset].member, [Acknowledgement(offset, offset, [kind])])
        self.begin_write()
        self.finish_write(is_committed)

    @rule(
        member=MEMBERS,
        first=st.integers(-4, 30),
        lengths=st.lists(st.integers(1, 8), min_size=1, max_size=3),
        kinds=KINDS,
    )
    def acknowledge_anything(self, member: str, first: int, lengths: list[int], kinds: list[AcknowledgeType]) -> None:
        batches = []
        offset = max(0, self.start + first)
        for length, kind in zip(lengths, kinds * 3, strict=False):
            batches.append(Acknowledgement(offset, offset + length - 1, [kind]))
            offset += length
        self.acknowledge(member, batches)

    def acknowledge(self, member: str, batches: list[Acknowledgement]) -> None:
        before = self.view()
        if (refused := self.is_refused(member, batches)) is not None:
            with pytest.raises(KafkaError, match=refused):
                self.window.acknowledge(member, batches, self.now + LOCK_S, now_ms=self.wall_ms)
            assert self.view() == before
            return
        self.pending += self.window.acknowledge(member, batches, self.now + LOCK_S, now_ms=self.wall_ms)
        for batch in batches:
            for offset in range(max(self.start, batch.first), batch.last + 1):
                kind = batch.types[offset - batch.first] if len(batch.types) > 1 else batch.types[0]
                one = self.ones[offset]
                if kind is AcknowledgeType.RENEW:
                    self.ones[offset] = one._replace(due=self.now + LOCK_S)
                else:
                    self.ones[offset] = one._replace(target=self.target(one, kind))

    @rule(end=st.sampled_from(["m1", "m2", 0.0, 1.0, 12.0, 31.0]))
    def locks_end(self, end: str | float) -> None:
        if isinstance(end, str):
            self.release(end)
        else:
            self.time_passes(end)

    def release(self, member: str) -> None:
        self.departs(member)
        self.adopt_ended(self.window.release(member, now_ms=self.wall_ms))

    def adopt_ended(self, ended: list[OffsetRange]) -> None:
        """Checks which locks have ended, and ends them in the model."""
        view = self.view()
        for offset in list(self.departed):
            if self.holds_departed_lock(offset) and self.ones[offset].target and view[offset].due == GONE:
                # It was acknowledged before its turn came.
                self.ones[offset] = self.ones[offset]._replace(due=GONE)
        assert not self.window.is_releasing or self.runs_at_once == 1
        self.locks_have_ended(ended, is_releasing=self.window.is_releasing)
        self.unwritten += ended
        self.advance()

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.wall_ms += int(seconds * 1000)
        dues = [self.ones[offset].due for offset in self.held()]
        assert self.window.next_due == (0.0 if self.window.is_releasing else min(dues, default=None))
        self.expire(self.window.expire(self.now, now_ms=self.wall_ms))
        self.wake()

    def expire(self, ended: list[OffsetRange]) -> None:
        self.adopt_ended(ended)
        is_whole = len(ended) < self.runs_at_once and not self.window.is_releasing
        assert not is_whole or all(self.ones[offset].due > self.now for offset in self.held())

    @rule(milliseconds=st.sampled_from([-50_000, 1, 900, 30_000]))
    def the_wall_clock_is_set(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.wake()

    def wake(self) -> None:
        times = [one.not_before_ms for one in self.ones.values() if one.state is AVAILABLE and one.not_before_ms]
        assert self.window.next_time_ms == min(times, default=None)
        assert self.window.wake(self.wall_ms) == any(time_ms <= self.wall_ms for time_ms in times)
        while self.window.wake(self.wall_ms):
            assert self.runs_at_once == 1
        for offset, one in self.ones.items():
            if one.state is AVAILABLE and one.not_before_ms <= self.wall_ms:
                self.ones[offset] = one._replace(not_before_ms=0)

    # Dead letters, and what is opened again.

    @rule(first=st.integers(-4, 30), length=st.integers(1, 30))
    def dead_letters_are_written(self, first: int, length: int) -> None:
        dead = self.window.dead_letters()
        assert [offset for one in dead for offset in range(one.first, one.last + 1)] == [
            offset for offset, one in sorted(self.ones.items()) if one.state is ARCHIVING
        ]
        for one in dead:
            assert (one.reason, one.delivery_count) == (self.ones[one.first].reason, self.ones[one.first].count)
        offsets = range(max(0, self.start + first), max(0, self.start + first) + length)
        changed = self.window.archive([(offsets[0], offsets[-1])])
        for offset in offsets:
            if offset in self.ones and self.ones[offset].state is ARCHIVING:
                self.ones[offset] = One(ARCHIVED, self.ones[offset].count)
                assert is_in(offset, changed)
        self.unwritten += changed
        self.advance()

    @precondition(lambda self: self.write is None)
    @rule(
        first=st.integers(-20, 10),
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
        is_committed=st.sampled_from([True, True, False]),
    )
    def finished_offsets_are_opened_again(self, first: int, lengths: list[int], is_committed: bool) -> None:
        ranges, offset = [], max(0, self.start + first)
        for length in lengths:
            ranges.append((offset, offset + length - 1))
            offset += length + 2
        wanted = {n for first, last in ranges for n in range(first, last + 1)}
        done = {offset for offset, one in self.ones.items() if one.state in DONE} | set(range(self.start))
        expected = sorted(n for n in wanted & done if n >= self.log_start)
        opened = self.window.finished(ranges, self.log_start)
        assert [n for first, last in opened for n in range(first, last + 1)] == expected
        if not opened:
            return
        start, complete, batches = self.window.opened(opened)
        self.write, self.pending = Write(self.pending, start, batches), []
        self.unwritten_before, self.unwritten = self.unwritten, []
        if not is_committed:
            self.write_fails()
            return
        self.write_is_committed(replaces=True)
        self.window.open(opened)
        self.accepted -= set(expected)
        for n in range(min(expected[0], self.start), self.start):
            self.ones[n] = One(ARCHIVED)
        for n in expected:
            self.ones[n] = One(AVAILABLE)
        self.start = min(expected[0], self.start)
        assert self.store.start == start
        for n in expected:
            assert n >= self.store.start
            assert self.store.states[n][2:4] == (AVAILABLE, 0)
        assert complete == sum(self.store.is_done(n) for n in range(start, self.end))
        self.advance()

    # Writes: one at a time, with everything that has changed.

    @precondition(lambda self: self.write is None and (self.pending or self.unwritten))
    @rule()
    def begin_write(self) -> None:
        ranges = self.pending + self.unwritten
        start, complete, batches = self.window.to_write(ranges)
        assert all(before.last < after.first for before, after in itertools.pairwise(batches))
        assert all(batch.first >= start for batch in batches)
        expected = sum(one.outcome in DONE for offset, one in self.ones.items() if offset >= start)
        assert complete == expected
        self.write = Write(self.pending, start, batches)
        self.pending = []
        self.unwritten_before, self.unwritten = self.unwritten, []

    @precondition(lambda self: self.write is not None)
    @rule(is_committed=st.sampled_from([True, True, False]))
    def finish_write(self, is_committed: bool) -> None:
        if is_committed:
            self.write_is_committed()
        else:
            self.write_fails()

    def write_is_committed(self, *, replaces: bool = False) -> None:
        assert self.write is not None
        self.store.merge(self.write, replaces=replaces)
        self.window.written()
        self.window.commit(self.write.pending)
        for offset, one in self.of_write():
            assert one.target is not None
            state, failures, not_before_ms, reason = one.target
            self.ones[offset] = One(state, one.count, failures=failures, not_before_ms=not_before_ms, reason=reason)
            if state is ACKNOWLEDGED:
                self.accepted.add(offset)
        self.write = None
        self.advance()

    def write_fails(self) -> None:
        assert self.write is not None
        for offset, one in self.of_write():
            self.ones[offset] = one._replace(target=None)
            if one.due == GONE:
                self.must_be_released(offset)
        self.unwritten += self.unwritten_before
        ended = self.window.roll_back(self.write.pending, self.now, now_ms=self.wall_ms)
        self.write = None
        self.expire(ended)

    def of_write(self) -> list[tuple[int, One]]:
        assert self.write is not None
        offsets = (offset for first, last in self.write.pending for offset in range(first, last + 1))
        return [(offset, self.ones[offset]) for offset in offsets if offset in self.ones]

    # The log.

    @rule(kind=st.sampled_from(["log start", "compaction", "new leader"]), number=st.integers(0, 12))
    def upheaval(self, kind: str, number: int) -> None:
        if kind == "log start":
            self.log_start_moves(number + 1)
        elif kind == "compaction":
            del self.log[number : number + 1]
        else:
            self.the_leader_is_replaced()

    def log_start_moves(self, forward: int) -> None:
        self.log_start = max(self.log_start, self.start + forward)
        self.log = [batch for batch in self.log if batch[1] >= self.log_start]
        self.follow_log_start()
        self.advance()

    def follow_log_start(self) -> None:
        """What is below is gone, but for what needs a dead letter, or will: it was delivered. What is held stays held.
        The broker follows before it reads the log."""
        if self.log_start <= self.start:
            return
        given_up = self.window.log_start_moved(self.log_start)
        while self.window.is_passing_deleted:
            assert self.runs_at_once == 1
            given_up += self.window.log_start_moved(self.log_start)
        self.unwritten += given_up
        self.deleted_below = max(self.deleted_below, self.log_start)
        below = range(self.start, min(self.end, self.log_start))
        self.start = next((offset for offset in below if self.outlives_its_record(offset)), self.log_start)
        for offset in range(self.start, self.log_start):
            one = self.ones.get(offset, One(AVAILABLE))
            if one.state is AVAILABLE:
                is_tried = one.count > 0 and self.group.has_dead_letters
                assert is_tried == is_in(offset, given_up)
                self.ones[offset] = (
                    self.given_up(one, Reason.DELETED, one.failures) if is_tried else One(ARCHIVED, one.count)
                )
        self.end = max(self.end, self.log_start)

    def outlives_its_record(self, offset: int) -> bool:
        one = self.ones[offset]
        return one.outcome is ARCHIVING or (self.group.has_dead_letters and one.count > 0 and one.state not in DONE)

    def the_leader_is_replaced(self) -> None:
        """In the middle of a write, this is one whose result nobody learns: it has not happened."""
        self.write, self.pending, self.unwritten = None, [], []
        self.window = ShareWindow.restored(self.store.start, self.store.batches, self.group)
        self.departed, self.departed_locks = {}, set()
        self.deleted_below = 0
        self.start = self.store.start
        self.end = max([self.start, *(offset + 1 for offset in self.store.states)])
        self.ones = {offset: self.found(offset) for offset in range(self.start, self.end)}
        self.advance()
        if self.log_start > self.start:
            self.follow_log_start()
        self.advance()
        self.wake()

    # What holds at any time.

    def view(self) -> dict[int, One]:
        return {
            offset: One(
                run.state,
                run.delivery_count,
                run.member,
                run.due,
                run.target and tuple(run.target),
                run.failures,
                run.not_before_ms,
                run.reason,
                run.hint and run.hint.delay_ms,
            )
            for run in self.window.runs
            for offset in range(run.first, run.last + 1)
        }

    @invariant()
    def the_window_is_as_the_model(self) -> None:
        assert (self.window.start_offset, self.window.end_offset) == (self.start, self.end)
        view, ones = self.view(), self.ones
        if self.tidy_after == 0:
            # What is done with may have the count and the state of its neighbour.
            view, ones = without_counts(view), without_counts(ones)
        assert view == ones
        assert self.window.delivery_complete_count == sum(one.state in DONE for one in self.ones.values())
        self.forget_changed_locks()

    @invariant()
    def the_runs_are_merged_and_without_gaps(self) -> None:
        runs = list(self.window.runs)
        for before, after in itertools.pairwise(runs):
            assert after.first == before.last + 1
            assert after[2:] != before[2:]

    @invariant()
    def a_new_leader_delivers_what_is_not_done_and_nothing_that_was_accepted(self) -> None:
        assert all(self.store.is_done(offset) for offset in self.accepted)
        for offset, one in self.ones.items():
            if one.state not in DONE and one.target is None:
                assert not self.store.is_done(offset), offset

    @invariant()
    def no_count_exceeds_the_limit(self) -> None:
        limit = CRASH_LIMIT if self.group.counts_failures else LIMIT
        assert all(one.count <= limit and one.failures <= LIMIT for one in self.ones.values())

    @invariant()
    def the_counts_are_those_of_the_runs(self) -> None:
        runs = self.window._runs
        ones = self.ones.values()
        assert runs.waiting == sum(one.state is AVAILABLE and one.not_before_ms > 0 for one in ones)
        assert runs.archiving == sum(one.state is ARCHIVING for one in ones)
        assert runs.locked == sum(one.state is ACQUIRED or one.is_ready for one in ones)
        assert runs.complete == sum(one.outcome in DONE for one in ones)


class RetryMachine(WindowMachine):
    group = RETRIES


class TidyMachine(WindowMachine):
    group = RETRIES._replace(has_dead_letters=False)
    tidy_after = 0


class SlicedMachine(WindowMachine):
    group = RETRIES
    runs_at_once = 1


TestShareWindow = WindowMachine.TestCase
TestShareWindow.settings = settings(settings.default, max_examples=200, stateful_step_count=60)
TestShareRetries = RetryMachine.TestCase
TestShareRetries.settings = settings(settings.default, max_examples=250, stateful_step_count=60)
TestShareTidied = TidyMachine.TestCase
TestShareTidied.settings = settings(settings.default, max_examples=100, stateful_step_count=60)
TestShareSliced = SlicedMachine.TestCase
TestShareSliced.settings = settings(settings.default, max_examples=250, stateful_step_count=60)
