"""Order by key against a model that knows one offset at a time: what is free, what is acquired, what is read."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skep.base.config.retry_backoff import RetryBackoff
from skep.coordination.share import key_order
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.acquisition import Acquired, Order
from skep.coordination.share.delivery_rules import DeliveryRules
from skep.coordination.share.delivery_runs import OffsetRange
from skep.coordination.share.key_order import NO_KEY, KeyOrder
from skep.coordination.share.share_state import DeliveryState
from skep.coordination.share.share_window import ShareWindow

AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
LOCK_S = 30.0
MAX_LOCKS = 20
PLAIN = DeliveryRules(50, MAX_LOCKS)
RETRIES = DeliveryRules(3, MAX_LOCKS, 30, counts_failures=True, backoff=RetryBackoff((5_000,)), has_dead_letters=True)


class Scene:
    """A window over a log in which each record has a key; "" is none."""

    def __init__(self, keys: str, batch: int = 3, rules: DeliveryRules = PLAIN) -> None:
        self.log = dict(enumerate(keys))
        self.batch = batch
        self.window = ShareWindow(0, rules)
        self.keys = KeyOrder(0)
        self.accepted: list[int] = []

    def batches(self, position: int) -> list[OffsetRange]:
        first = position - position % self.batch
        end = len(self.log)
        return [(base, min(base + self.batch, end) - 1) for base in range(first, end, self.batch)]

    def read_keys(self) -> None:
        while (position := self.keys.next_unknown(self.window)) is not None and position < len(self.log):
            self.read_some(position)

    def read_some(self, position: int) -> None:
        for first, last in self.batches(position)[:1]:
            hashes = [
                (offset, hash(self.log[offset]))
                for offset in range(first, last + 1)
                if self.log.get(offset, "-") not in "- "
            ]
            self.keys.learn(first, last, hashes)

    def acquire(self, member: str = "m", most: int = 100, now: float = 0.0) -> list[int]:
        free = self.keys.free(self.window, most)
        if not free:
            return []
        batches = [one for one in self.batches(free[0][0]) if one[0] <= free[-1][1]]
        acquired = self.window.acquire(Order(member, most, 100), batches, now + LOCK_S, only=free)
        return [offset for first, last, _ in acquired for offset in range(first, last + 1)]

    def finish(self, kind: AcknowledgeType, *offsets: int, member: str = "m", now_ms: int = 0) -> None:
        for offset in offsets:
            self.window.commit(
                self.window.acknowledge(member, [Acknowledgement(offset, offset, [kind])], LOCK_S, now_ms=now_ms)
            )


def test_one_record_of_each_key_is_given_and_the_next_when_it_is_done_with():
    scene = Scene("abcaab bc")
    scene.read_keys()
    assert scene.acquire() == [0, 1, 2, 6]
    assert scene.acquire() == []
    scene.finish(ACCEPT, 0)
    assert scene.acquire() == [3]
    scene.finish(ACCEPT, 1, 2, 3)
    assert scene.acquire() == [4, 5, 8]


def test_a_record_that_comes_again_comes_before_the_later_ones_of_its_key():
    scene = Scene("aabb")
    scene.read_keys()
    assert scene.acquire() == [0, 2]
    scene.finish(RELEASE, 0)
    scene.finish(ACCEPT, 2)
    assert scene.acquire() == [0, 3]


def test_a_record_that_waits_holds_up_its_key_and_one_that_is_dead_frees_it():
    scene = Scene("aabb", rules=RETRIES)
    scene.read_keys()
    scene.acquire()
    scene.finish(RELEASE, 0, now_ms=1_000)
    scene.finish(REJECT, 2)
    assert scene.acquire() == [3]
    scene.window.wake(6_000)
    assert scene.acquire() == [0]


def test_nothing_is_given_before_all_keys_in_front_are_known():
    scene = Scene("abcabcxyz")
    assert scene.acquire() == []
    scene.read_some(0)
    assert scene.acquire() == [0, 1, 2]
    scene.read_some(3)
    assert scene.acquire() == []
    scene.read_keys()
    assert scene.acquire() == [6, 7, 8]


def test_it_looks_ahead_as_far_as_the_locks_reach():
    scene = Scene("a" * 30 + "b", batch=1)
    scene.read_keys()
    assert scene.keys.known_end == MAX_LOCKS
    assert scene.acquire() == [0]
    for offset in range(11):
        scene.finish(ACCEPT, offset)
        scene.read_keys()
        assert scene.acquire() == [offset + 1] + [30] * (offset == 10)


def test_records_in_flight_when_the_order_begins_hold_up_their_keys():
    scene = Scene("abab")
    held = scene.window.acquire(Order("m", 2, 100, is_record_limit=True), [(0, 2)], LOCK_S)
    assert held == [Acquired(0, 1, 1)]
    assert scene.acquire() == []
    scene.read_keys()
    assert scene.acquire() == []
    scene.finish(ACCEPT, 0)
    assert scene.acquire() == [2]


def test_the_rest_of_a_large_batch_is_known_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_order, "MAX_AHEAD", 25)
    scene = Scene("ab" * 40, batch=80)
    scene.read_keys()
    assert scene.keys.known_end == 25
    for offset in range(0, 60, 2):
        assert scene.acquire() == [offset, offset + 1]
        scene.finish(ACCEPT, offset, offset + 1)
        scene.read_keys()
        assert len(scene.keys._hashes) <= 100


class KeyOrderMachine(RuleBasedStateMachine):
    group = PLAIN

    @initialize(seed=st.integers(0, 1000), batch=st.integers(1, 7))
    def begin(self, seed: int, batch: int) -> None:
        self.scene = Scene("".join(random.Random(seed).choices("aabcd ", k=60)), batch, self.group)
        self.now, self.now_ms = 0.0, 1_000_000
        self.held: dict[int, str] = {}
        self.released_to_all: set[int] = set()

    @property
    def window(self) -> ShareWindow:
        return self.scene.window

    def states(self) -> dict[int, DeliveryState]:
        return {offset: run.state for run in self.window.runs for offset in range(run.first, run.last + 1)}

    def ready(self) -> set[int]:
        return {offset for run in self.window.runs if run.is_ready for offset in range(run.first, run.last + 1)}

    def read(self, pieces: int) -> None:
        for _ in range(pieces):
            position = self.scene.keys.next_unknown(self.window)
            if position is not None and position < len(self.scene.log):
                self.scene.read_some(position)

    @rule(member=st.sampled_from(["m1", "m2"]), most=st.sampled_from([1, 3, 12]), pieces=st.integers(0, 6))
    def acquire(self, member: str, most: int, pieces: int) -> None:
        self.read(pieces)
        self.scene.keys.next_unknown(self.window)
        self.window.include(self.scene.keys.known_end)
        before, ready, known_end = self.states(), self.ready(), self.scene.keys.known_end
        acquired = self.scene.acquire(member, most, self.now)
        assert acquired == sorted(set(acquired))
        given: set[str] = set()
        for offset in acquired:
            key = self.scene.log[offset]
            assert offset in ready
            assert key not in given
            if key != " ":
                given.add(key)
                for other, state in before.items():
                    if other != offset and self.scene.log.get(other) == key:
                        assert state is not ACQUIRED
                        assert other > offset or state is not AVAILABLE
            self.held[offset] = member
        is_any_free = any(self.is_free(offset, before) for offset in ready if offset < known_end)
        has_unknown = any(offset >= known_end and state is ACQUIRED for offset, state in before.items())
        assert bool(acquired) == (is_any_free and not has_unknown)

    def is_free(self, offset: int, states: dict[int, DeliveryState]) -> bool:
        key = self.scene.log.get(offset, " ")
        same = [other for other in states if other != offset and self.scene.log.get(other) == key]
        return key == " " or not any(
            states[other] is ACQUIRED or (other < offset and states[other] is AVAILABLE) for other in same
        )

    @precondition(lambda self: self.held)
    @rule(kinds=st.lists(st.sampled_from([ACCEPT, RELEASE, REJECT]), min_size=1, max_size=4), more=st.integers(1, 2))
    def finish(self, kinds: list[AcknowledgeType], more: int) -> None:
        for kind, offset in zip(kinds, sorted(self.held)[::more], strict=False):
            self.scene.finish(kind, offset, member=self.held.pop(offset), now_ms=self.now_ms)
        self.acquire("m1", 12, 6)

    @rule(seconds=st.sampled_from([1.0, 6.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now, self.now_ms = self.now + seconds, self.now_ms + int(seconds * 1000)
        for first, last in self.window.expire(self.now, now_ms=self.now_ms):
            for offset in range(first, last + 1):
                self.held.pop(offset, None)
        self.window.wake(self.now_ms)

    @rule()
    def another_leader(self) -> None:
        ranges = [(run.first, run.last) for run in self.window.runs]
        start, _, batches = self.window.to_write(ranges)
        self.scene.window = ShareWindow.restored(start, batches, self.group)
        self.scene.keys = KeyOrder(self.window.start_offset)
        self.held.clear()

    @rule(first=st.integers(0, 40), length=st.integers(1, 6))
    def open_again(self, first: int, length: int) -> None:
        if first < self.window.end_offset and length > 4:
            self.window.open(self.window.finished([(first, first + length)], 0))

    @rule(first=st.integers(0, 10))
    def the_log_start_moves(self, first: int) -> None:
        self.window.log_start_moved(self.window.start_offset + first % 3)
        self.held = {offset: member for offset, member in self.held.items() if offset >= self.window.start_offset}

    @invariant()
    def one_record_of_a_key_is_in_flight(self) -> None:
        keys = [self.scene.log[offset] for offset in self.held if self.scene.log[offset] != " "]
        assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        """Everything that is left can be finished, in the order of each key."""
        if not hasattr(self, "scene"):
            return
        for offset, member in sorted(self.held.items()):
            self.scene.finish(ACCEPT, offset, member=member)
        for _ in range(1000):
            self.now_ms += 10_000
            self.window.wake(self.now_ms)
            self.scene.read_keys()
            acquired = self.scene.acquire()
            if not acquired:
                break
            self.scene.finish(ACCEPT, *acquired)
        unfinished = {offset for offset, state in self.states().items() if state in (AVAILABLE, ACQUIRED)}
        assert not {offset for offset in unfinished if offset in self.scene.log}


class RetryingKeyOrderMachine(KeyOrderMachine):
    group = RETRIES


TestKeyOrder = KeyOrderMachine.TestCase
TestKeyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRetryingKeyOrder = RetryingKeyOrderMachine.TestCase
TestRetryingKeyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_offsets_without_a_record_hold_up_nobody():
    scene = Scene("aaa", batch=3)
    scene.keys.learn(0, 2, [(1, 7)])
    assert NO_KEY == 0
    assert scene.acquire() == [0, 1, 2]
