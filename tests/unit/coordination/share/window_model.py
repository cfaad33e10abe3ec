"""The model of a share window: it knows one offset at a time, and what should become of it."""

from typing import Any, NamedTuple

from skep.base.config.retry_backoff import RetryBackoff
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.delivery_rules import DeliveryRules
from skep.coordination.share.delivery_runs import OffsetRange
from skep.coordination.share.departed_locks import GONE
from skep.coordination.share.share_state import DeliveryState, Reason, StateBatch
from skep.coordination.share.state_batches import merge

AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
ARCHIVING = DeliveryState.ARCHIVING
DONE = (ACKNOWLEDGED, ARCHIVED)
LOCK_S = 30.0
LIMIT = 4
CRASH_LIMIT = 16
ISOLATED_FROM, CRASHES_ISOLATED_FROM = 2, 8
MAX_LOCKS, MAX_WAITING = 25, 12
BEGIN_MS = 1_700_000_000_000
STEPS_MS = (1_000, 20_000)
KAFKA = DeliveryRules(LIMIT, MAX_LOCKS)
RETRIES = DeliveryRules(
    LIMIT, MAX_LOCKS, MAX_WAITING, counts_failures=True, backoff=RetryBackoff(STEPS_MS), has_dead_letters=True
)


class One(NamedTuple):
    """What is true of one offset."""

    state: DeliveryState
    count: int = 0
    member: str = ""
    due: float = 0.0
    target: tuple[Any, ...] | None = None
    """State, failures, time and reason that it will have."""
    failures: int = 0
    not_before_ms: int = 0
    reason: Reason = Reason.NONE
    hint_ms: int | None = None

    @property
    def is_ready(self) -> bool:
        return self.state is AVAILABLE and not self.not_before_ms

    @property
    def outcome(self) -> DeliveryState:
        return self.state if self.target is None else self.target[0]


Lock = tuple[str, float]
"""The member, and until when it holds something."""


class Write(NamedTuple):
    """A write that is under way: the offsets that members wait for, and all that it has."""

    pending: list[OffsetRange]
    start: int
    batches: list[StateBatch]


class Store:
    """What a persister has."""

    def __init__(self) -> None:
        self.start = 0
        self.batches: list[StateBatch] = []
        self.states: dict[int, StateBatch] = {}

    def merge(self, write: Write, *, replaces: bool = False) -> None:
        if replaces:
            self.start, self.batches = write.start, []
        self.start = max(self.start, write.start)
        merge(self.batches, write.batches, self.start)
        self.states = {offset: batch for batch in self.batches for offset in range(batch.first, batch.last + 1)}

    def is_done(self, offset: int) -> bool:
        return offset < self.start or (offset in self.states and self.states[offset].state in DONE)


class WindowModel:
    """Owns what should be true of each offset, of the clocks, and of the store. ``group`` are the rules."""

    group = KAFKA

    def __init__(self) -> None:
        super().__init__()
        self.ones: dict[int, One] = {}
        """The window, offset by offset."""
        self.start = self.end = 0
        self.now = 0.0
        self.wall_ms = BEGIN_MS
        self.store = Store()
        self.log_start = self.deleted_below = 0
        self.departed: dict[int, Lock] = {}
        """Locks of members that are gone, to be released."""
        self.departed_locks: set[Lock] = set()
        """The same by member and time alone, which is how the window knows them, until all of them are released."""

    # What there is.

    def held(self) -> list[int]:
        return [offset for offset in sorted(self.ones) if self.holder(offset)]

    def holder(self, offset: int) -> str:
        one = self.ones.get(offset)
        return one.member if one is not None and one.state is ACQUIRED and one.target is None else ""

    def waiting(self) -> list[int]:
        return [offset for offset, one in sorted(self.ones.items()) if one.state is AVAILABLE and one.not_before_ms]

    def room(self) -> int:
        """How many new records may be acquired."""
        states = [one for one in self.ones.values() if one.state not in DONE]
        waiting = sum(one.state is AVAILABLE and one.not_before_ms > 0 for one in states)
        return max(0, MAX_LOCKS - (len(states) - waiting)) if waiting < self.group.max_waiting else 0

    def isolation(self, one: One) -> tuple[bool, bool]:
        """Whether it is delivered with nothing of another state, and whether alone."""
        if not self.group.counts_failures:
            return one.count >= ISOLATED_FROM, one.count >= LIMIT - 1
        is_isolated = one.failures >= ISOLATED_FROM or one.count >= CRASHES_ISOLATED_FROM
        return is_isolated, one.failures >= LIMIT - 1 or one.count >= CRASH_LIMIT - 1

    # What becomes of it.

    def is_refused(self, member: str, batches: list[Acknowledgement]) -> str | None:
        if any(self.deleted_below <= n < self.start for batch in batches for n in range(batch.first, batch.last + 1)):
            return "is done with"
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

    def target(self, one: One, kind: AcknowledgeType) -> tuple[Any, ...]:
        if kind is AcknowledgeType.ACCEPT:
            return ACKNOWLEDGED, 0, 0, Reason.NONE
        if kind is AcknowledgeType.GAP:
            return ARCHIVED, 0, 0, Reason.NONE
        if kind is AcknowledgeType.RELEASE:
            after = self.released(one, has_failed=True)
        else:
            after = self.given_up(one, Reason.REJECTED, one.failures + self.group.counts_failures)
        return after.state, after.failures, after.not_before_ms, after.reason

    def released(self, one: One, *, has_failed: bool) -> One:
        """What becomes of it when its delivery ends without a result."""
        failures = one.failures + (has_failed and self.group.counts_failures)
        is_used_up = one.count >= LIMIT
        if self.group.counts_failures:
            is_used_up = failures >= LIMIT or one.count >= CRASH_LIMIT
        if is_used_up:
            return self.given_up(one, Reason.LIMIT, failures)
        delay_ms = one.hint_ms
        if delay_ms is None:
            delay_ms = STEPS_MS[min(failures, len(STEPS_MS)) - 1] if self.group.backoff and has_failed else 0
        return One(AVAILABLE, one.count, failures=failures, not_before_ms=self.wall_ms + delay_ms if delay_ms else 0)

    def departs(self, member: str) -> None:
        for offset, one in self.ones.items():
            if one.state is ACQUIRED and one.member == member:
                if one.target is None:
                    self.must_be_released(offset)
                else:
                    self.ones[offset] = one._replace(due=GONE)

    def must_be_released(self, offset: int) -> None:
        one = self.ones[offset]
        self.departed[offset] = (one.member, one.due)
        self.departed_locks.add((one.member, one.due))

    def locks_have_ended(self, ended: list[OffsetRange], *, is_releasing: bool) -> None:
        """Locks of members that are gone are no failures. While the window ``is_releasing``, no other lock ends."""
        for offset in sorted({offset for first, last in ended for offset in range(first, last + 1)}):
            one = self.ones[offset]
            assert one.state is ACQUIRED
            assert one.target is None
            is_departed = (one.member, one.due) in self.departed_locks
            assert is_departed or (one.due <= self.now and not is_releasing)
            self.departed.pop(offset, None)
            self.ones[offset] = self.released(one, has_failed=not is_departed)
        if not is_releasing:
            left = [offset for offset in self.departed if self.holds_departed_lock(offset)]
            assert not left, "nobody releases them"
            self.departed, self.departed_locks = {}, set()

    def holds_departed_lock(self, offset: int) -> bool:
        one = self.ones.get(offset)
        return one is not None and one.state is ACQUIRED and (one.member, one.due) == self.departed[offset]

    def forget_changed_locks(self) -> None:
        self.departed = {offset: lock for offset, lock in self.departed.items() if self.holds_departed_lock(offset)}

    def given_up(self, one: One, reason: Reason, failures: int) -> One:
        if self.group.has_dead_letters:
            return One(ARCHIVING, one.count, failures=failures, reason=reason)
        return One(ARCHIVED, one.count)

    def found(self, offset: int) -> One:
        """What a new leader knows of an offset."""
        if (batch := self.store.states.get(offset)) is None:
            return One(AVAILABLE)
        _, _, state, count, failures, not_before_ms, reason = batch
        return One(state, count, failures=failures, not_before_ms=not_before_ms, reason=reason)

    def advance(self) -> None:
        while self.start < self.end and self.ones[self.start].state in DONE:
            self.start += 1
        self.ones = {offset: one for offset, one in self.ones.items() if offset >= self.start}


def is_in(offset: int, ranges: list[OffsetRange]) -> bool:
    return any(first <= offset <= last for first, last in ranges)


def without_counts(ones: dict[int, One]) -> dict[int, One]:
    return {offset: One(ARCHIVED) if one.state in DONE else one for offset, one in ones.items()}
