"""The share window against a model that knows one offset at a time, over random schedules with failed writes."""

import itertools
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skep.base.errors import KafkaError
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.acquisition import Acquired, Order
from skep.coordination.share.delivery_runs import OffsetRange
from skep.coordination.share.share_state import DeliveryState, StateBatch
from skep.coordination.share.share_window import ShareWindow

AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
DONE = (ACKNOWLEDGED, ARCHIVED)
LOCK_S = 30.0
LIMIT = 4
ISOLATED_FROM = 2
MAX_LOCKS = 25
MEMBERS = st.sampled_from(["m1", "m2"])
KINDS = st.lists(st.sampled_from(list(AcknowledgeType)), min_size=1, max_size=3)


class One(NamedTuple):
    """What is true of one offset."""

    state: DeliveryState
    count: int = 0
    member: str = ""
    due: float = 0.0
    target: DeliveryState | None = None


class Write(NamedTuple):
    """A write that is under way: the offsets that members wait for, and all that it has."""

    pending: list[OffsetRange]
    start: int
    batches: list[StateBatch]


class Store:
    """What a persister has."""

    def __init__(self) -> None:
        self.start = 0
        self.states: dict[int, tuple[DeliveryState, int]] = {}

    def merge(self, write: Write) -> None:
        self.start = max(self.start, write.start)
        for first, last, state, count in write.batches:
            for offset in range(first, last + 1):
                self.states[offset] = state, count
        self.states = {offset: one for offset, one in self.states.items() if offset >= self.start}

    def is_done(self, offset: int) -> bool:
        return offset < self.start or self.states.get(offset, (AVAILABLE, 0))[0] in DONE

    def batches(self) -> list[StateBatch]:
        return [StateBatch(offset, offset, *self.states[offset]) for offset in sorted(self.states)]


class WindowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = ShareWindow(0, LIMIT, MAX_LOCKS)
        self.ones: dict[int, One] = {}
        """The window, offset by offset."""
        self.start = self.end = 0
        self.now = 0.0
        self.store = Store()
        self.pending: list[OffsetRange] = []
        self.unwritten: list[OffsetRange] = []
        self.write: Write | None = None
        self.accepted: set[int] = set()
        """What a member was told to be accepted."""
        self.log_start = 0

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

    # Acquiring.

    @rule(
        member=MEMBERS,
        max_records=st.integers(1, 12),
        batch_size=st.integers(1, 8),
        is_record_limit=st.booleans(),
        max_batches=st.integers(1, 6),
        reads_committed=st.booleans(),
    )
    def acquire(
        self,
        member: str,
        max_records: int,
        batch_size: int,
        is_record_limit: bool,
        max_batches: int,
        reads_committed: bool,
    ) -> None:
        position = self.window.next_fetch_offset
        assert position == min(
            (offset for offset, one in self.ones.items() if one.state is AVAILABLE), default=self.end
        )
        reach = self.window.reach(max_records)
        batches = [batch for batch in self.log if batch[1] >= position and batch[0] <= max(reach, position)]
        batches = batches[:max_batches] or [batch for batch in self.log if batch[1] >= position][:1]
        aborted = [batch for batch in batches if batch in self.aborted] if reads_committed else []
        order = Order(member, max_records, batch_size, is_record_limit)
        can_acquire = self.window.can_acquire
        acquired = self.window.acquire(order, batches, self.now + LOCK_S, aborted=aborted)
        self.check_acquired(order, batches, acquired)
        self.adopt_acquired(position, order, batches, aborted, acquired)
        if batches and can_acquire and not acquired:
            assert aborted or batches[0][0] > position

    def check_acquired(self, order: Order, batches: list[OffsetRange], acquired: list[Acquired]) -> None:
        offsets = [offset for first, last, _ in acquired for offset in range(first, last + 1)]
        assert offsets == sorted(set(offsets))
        counts = [self.ones[offset].count if offset in self.ones else 0 for offset in offsets]
        if order.is_record_limit:
            assert len(offsets) <= order.max_records
        elif len(offsets) > order.max_records:
            # Only to complete a batch of the log.
            at_limit = offsets[order.max_records - 1]
            (batch,) = (batch for batch in batches if batch[0] <= at_limit <= batch[1])
            assert offsets[-1] <= batch[1]
        if max(counts, default=0) >= ISOLATED_FROM:
            assert offsets == list(range(offsets[0], offsets[-1] + 1))
            assert len(set(counts)) == 1
            assert counts[0] < LIMIT - 1 or len(offsets) == 1
        if not order.is_record_limit:
            for first, last, count in acquired:
                if last - first >= order.batch_size and count <= ISOLATED_FROM:
                    # It could not be divided at a batch of the log.
                    assert not any(base - first >= order.batch_size for base, _ in batches if base <= last)

    def adopt_acquired(
        self,
        position: int,
        order: Order,
        batches: list[OffsetRange],
        aborted: list[OffsetRange],
        acquired: list[Acquired],
    ) -> None:
        """Checks the change of each offset, and makes it in the model."""
        given = {offset: count for first, last, count in acquired for offset in range(first, last + 1)}
        assert self.window.end_offset >= self.end
        after = self.view()
        for offset in range(position, max(self.end, self.window.end_offset)):
            before = self.ones.get(offset, One(AVAILABLE))
            if offset in given:
                assert before.state is AVAILABLE
                assert given[offset] == before.count + 1
                self.ones[offset] = One(ACQUIRED, before.count + 1, order.member, self.now + LOCK_S)
            elif before.state is AVAILABLE:
                is_gone = bool(batches) and offset < batches[0][0]
                is_aborted = any(first <= offset <= last for first, last in aborted)
                became = after.get(offset, One(ARCHIVED))
                if is_gone:
                    assert became.state is ARCHIVED
                if offset not in self.ones:
                    assert is_gone or is_aborted
                if became.state is ARCHIVED:
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

    @precondition(lambda self: self.held() and self.write is None)
    @rule(kind=st.sampled_from([AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE]), is_committed=st.booleans())
    def acknowledge_all_and_write(self, kind: AcknowledgeType, is_committed: bool) -> None:
        for offset in self.held():
            self.acknowledge(self.ones[offset].member, [Acknowledgement(offset, offset, [kind])])
        self.begin_write()
        self.finish_write(is_committed)

    def held(self) -> list[int]:
        return [offset for offset in sorted(self.ones) if self.holder(offset)]

    def holder(self, offset: int) -> str:
        one = self.ones.get(offset)
        return one.member if one is not None and one.state is ACQUIRED and one.target is None else ""

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
                self.window.acknowledge(member, batches, self.now + LOCK_S)
            assert self.view() == before
            return
        self.pending += self.window.acknowledge(member, batches, self.now + LOCK_S)
        for batch in batches:
            for offset in range(max(self.start, batch.first), batch.last + 1):
                kind = batch.types[offset - batch.first] if len(batch.types) > 1 else batch.types[0]
                one = self.ones[offset]
                if kind is AcknowledgeType.RENEW:
                    self.ones[offset] = one._replace(due=self.now + LOCK_S)
                else:
                    self.ones[offset] = one._replace(target=self.target(one, kind))

    def is_refused(self, member: str, batches: list[Acknowledgement]) -> str | None:
        for batch in batches:
            if batch.last < self.start:
                continue
            if self.start == self.end:
                return "not in flight"
            if batch.last >= self.end:
                return "ends past"
            for offset in range(max(self.start, batch.first), batch.last + 1):
                one = self.ones[offset]
                if one.state is not ACQUIRED:
                    return "not ACQUIRED"
                if one.target is not None:
                    return "already"
                if one.member != member:
                    return "another member"
        return None

    def target(self, one: One, kind: AcknowledgeType) -> DeliveryState:
        if kind is AcknowledgeType.ACCEPT:
            return ACKNOWLEDGED
        return AVAILABLE if kind is AcknowledgeType.RELEASE and one.count < LIMIT else ARCHIVED

    @rule(end=st.sampled_from(["m1", "m2", 1.0, 12.0, 31.0]))
    def locks_end(self, end: str | float) -> None:
        if isinstance(end, str):
            self.release(end)
        else:
            self.time_passes(end)

    def release(self, member: str) -> None:
        released = {offset for first, last in self.window.release(member) for offset in range(first, last + 1)}
        for offset, one in self.ones.items():
            if one.state is ACQUIRED and one.member == member:
                assert (offset in released) == (one.target is None)
                self.ones[offset] = one._replace(due=0.0) if one.target is not None else self.released(one)
        self.unwritten += [(offset, offset) for offset in released]
        self.advance()

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        dues = [one.due for one in self.ones.values() if one.state is ACQUIRED and one.target is None]
        assert self.window.next_due == min(dues, default=None)
        self.unwritten += self.window.expire(self.now)
        self.expire()

    def expire(self) -> None:
        for offset, one in self.ones.items():
            if one.state is ACQUIRED and one.target is None and one.due <= self.now:
                self.ones[offset] = self.released(one)
        self.advance()

    @staticmethod
    def released(one: One) -> One:
        return One(AVAILABLE if one.count < LIMIT else ARCHIVED, one.count)

    # Writes: one at a time, with everything that has changed.

    @precondition(lambda self: self.write is None and (self.pending or self.unwritten))
    @rule()
    def begin_write(self) -> None:
        ranges = self.pending + self.unwritten
        start, complete, batches = self.window.to_write(ranges)
        assert all(before.last < after.first for before, after in itertools.pairwise(batches))
        assert all(batch.first >= start for batch in batches)
        expected = sum((one.target or one.state) in DONE for offset, one in self.ones.items() if offset >= start)
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

    def write_is_committed(self) -> None:
        assert self.write is not None
        self.store.merge(self.write)
        self.window.commit(self.write.pending)
        for offset, one in self.of_write():
            assert one.target is not None
            self.ones[offset] = One(one.target, one.count)
            if one.target is ACKNOWLEDGED:
                self.accepted.add(offset)
        self.write = None
        self.advance()

    def write_fails(self) -> None:
        assert self.write is not None
        self.unwritten += self.window.roll_back(self.write.pending, self.now) + self.unwritten_before
        for offset, one in self.of_write():
            self.ones[offset] = one._replace(target=None)
        self.write = None
        self.expire()

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
        self.log_start = self.start + forward
        self.log = [batch for batch in self.log if batch[1] >= self.log_start]
        self.window.log_start_moved(self.log_start)
        self.start = self.log_start
        self.end = max(self.end, self.start)
        self.advance()

    def the_leader_is_replaced(self) -> None:
        """In the middle of a write, this is one whose result nobody learns: it has not happened."""
        self.write, self.pending, self.unwritten = None, [], []
        self.window = ShareWindow.restored(self.store.start, self.store.batches(), LIMIT, MAX_LOCKS)
        self.window.log_start_moved(self.log_start)
        self.start = max(self.store.start, self.log_start)
        self.end = max([self.start, *(offset + 1 for offset in self.store.states)])
        known = self.store.states
        self.ones = {offset: One(*known.get(offset, (AVAILABLE, 0))) for offset in range(self.start, self.end)}
        self.advance()

    # What holds at any time.

    def advance(self) -> None:
        while self.start < self.end and self.ones[self.start].state in DONE:
            self.start += 1
        self.ones = {offset: one for offset, one in self.ones.items() if offset >= self.start}

    def view(self) -> dict[int, One]:
        return {
            offset: One(run.state, run.delivery_count, run.member, run.due, run.target)
            for run in self.window.runs
            for offset in range(run.first, run.last + 1)
        }

    @invariant()
    def the_window_is_as_the_model(self) -> None:
        assert (self.window.start_offset, self.window.end_offset) == (self.start, self.end)
        assert self.view() == self.ones
        assert self.window.delivery_complete_count == sum(one.state in DONE for one in self.ones.values())

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
        assert all(one.count <= LIMIT for one in self.ones.values())


TestShareWindow = WindowMachine.TestCase
TestShareWindow.settings = settings(settings.default, max_examples=250, stateful_step_count=60)
