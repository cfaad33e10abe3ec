"""What becomes of deliveries that fail: waiting for a later time, the two counters, dead letters, records too old."""

from collections.abc import Sequence

import pytest

from skep.base.config.retry_backoff import RetryBackoff
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share import share_window
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.acquisition import Order
from skep.coordination.share.delivery_rules import DeliveryRules
from skep.coordination.share.delivery_runs import Hint, OffsetRange
from skep.coordination.share.share_state import DeadLetters, DeliveryState, Reason, StateBatch
from skep.coordination.share.share_window import ShareWindow

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = DeliveryState
LADDER = RetryBackoff((1_000, 5_000, 30_000))
LOCK_MS = 30_000
NOW_MS = 1_700_000_000_000


def window(batches: Sequence[StateBatch] = (), max_locks: int = 2000, **rules: object) -> ShareWindow:
    retries = {"counts_failures": True, "backoff": LADDER, **rules}
    return ShareWindow.restored(0, batches, DeliveryRules(3, max_locks, **retries))  # type: ignore[arg-type]


def acquire(
    share: ShareWindow, *batches: OffsetRange, most: int = 500, **options: object
) -> list[tuple[int, int, int]]:
    order = Order("m1", most, 500, is_record_limit=True)
    return [tuple(one) for one in share.acquire(order, batches, LOCK_MS, **options)]  # type: ignore[misc,arg-type]


def settle(share: ShareWindow, first: int, last: int, kind: int, now_ms: int = NOW_MS) -> None:
    share.commit(share.acknowledge("m1", [Acknowledgement(first, last, [kind])], LOCK_MS, now_ms=now_ms))


def written(share: ShareWindow, first: int, last: int) -> list[StateBatch]:
    return share.to_write([(first, last)]).batches


# The ladder.


def test_a_released_record_waits_and_others_are_delivered_meanwhile() -> None:
    share = window()
    acquire(share, (0, 9))
    settle(share, 3, 3, RELEASE)
    assert share.next_fetch_offset == 10
    assert share.next_time_ms == NOW_MS + 1_000
    assert acquire(share, (10, 14)) == [(10, 14, 1)]
    assert not share.wake(NOW_MS + 999)
    assert share.next_fetch_offset == 15
    assert share.wake(NOW_MS + 1_000)
    assert share.next_fetch_offset == 3
    assert acquire(share, (0, 9)) == [(3, 3, 2)]
    assert share.next_time_ms is None


def test_each_failure_waits_longer_and_the_limit_counts_failures() -> None:
    share = window()
    acquire(share, (0, 0))
    settle(share, 0, 0, RELEASE)
    assert written(share, 0, 0) == [StateBatch(0, 0, AVAILABLE, 1, 1, NOW_MS + 1_000)]
    share.wake(NOW_MS + 1_000)
    acquire(share, (0, 0))
    assert share.expire(LOCK_MS, now_ms=NOW_MS) == [(0, 0)]
    assert written(share, 0, 0) == [StateBatch(0, 0, AVAILABLE, 2, 2, NOW_MS + 5_000)]
    share.wake(NOW_MS + 5_000)
    acquire(share, (0, 0))
    settle(share, 0, 0, RELEASE)
    assert share.start_offset == 1, "it has failed three times"


def test_a_member_that_is_gone_is_no_failure_but_ends_a_crash_loop() -> None:
    share = window()
    for count in range(1, 12):
        assert acquire(share, (0, 0)) == [(0, 0, count)]
        assert share.release("m1", now_ms=NOW_MS) == [(0, 0)]
        assert written(share, 0, 0) == [StateBatch(0, 0, AVAILABLE, count)]
    acquire(share, (0, 0))
    share.release("m1", now_ms=NOW_MS)
    assert share.start_offset == 1, "four times the limit"


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, REJECT])
def test_a_failed_write_of_what_a_gone_member_has_acknowledged_is_no_failure(kind: AcknowledgeType) -> None:
    share = window()
    acquire(share, (0, 4))
    ranges = share.acknowledge("m1", [Acknowledgement(0, 4, [kind])], LOCK_MS, now_ms=NOW_MS)
    share.release("m1", now_ms=NOW_MS)
    assert share.roll_back(ranges, 1, now_ms=NOW_MS) == [(0, 4)]
    assert written(share, 0, 4) == [StateBatch(0, 4, AVAILABLE, 1, failures=0)]
    assert acquire(share, (0, 4)) == [(0, 4, 2)]


def test_without_the_second_counter_every_delivery_counts_and_waits() -> None:
    share = window(counts_failures=False)
    acquire(share, (0, 0))
    share.release("m1", now_ms=NOW_MS)
    assert written(share, 0, 0) == [StateBatch(0, 0, AVAILABLE, 1, 0, NOW_MS + 1_000)]
    share.wake(NOW_MS + 1_000)
    acquire(share, (0, 0))
    share.release("m1", now_ms=NOW_MS)
    assert written(share, 0, 0) == [StateBatch(0, 0, AVAILABLE, 2, 0, NOW_MS + 5_000)]


def test_a_new_leader_does_not_deliver_before_the_time_that_was_written() -> None:
    share = window([StateBatch(0, 4, AVAILABLE, 2, 1, NOW_MS + 5_000), StateBatch(5, 9, ACKNOWLEDGED, 1)])
    assert share.next_fetch_offset == 10
    assert share.next_time_ms == NOW_MS + 5_000
    share.wake(NOW_MS + 5_000)
    assert acquire(share, (0, 9)) == [(0, 4, 3)]


def test_a_failed_write_gives_the_record_back_to_its_member() -> None:
    share = window()
    acquire(share, (0, 9))
    ranges = share.acknowledge("m1", [Acknowledgement(2, 3, [RELEASE])], LOCK_MS, now_ms=NOW_MS)
    assert share.to_write(ranges).batches == [StateBatch(2, 3, AVAILABLE, 1, 1, NOW_MS + 1_000)]
    assert share.roll_back(ranges, 0, now_ms=NOW_MS) == []
    assert share.next_time_ms is None
    assert [run.state for run in share.runs] == [ACQUIRED]
    assert share.next_due == LOCK_MS


# A member sets the delay of one record.


def test_a_hint_replaces_the_delay_of_one_delivery() -> None:
    share = window(backoff=None, counts_failures=False)
    acquire(share, (0, 9))
    share.delay(4, Hint(90_000), "m1")
    settle(share, 0, 9, RELEASE)
    assert share.next_time_ms == NOW_MS + 90_000
    assert acquire(share, (0, 9)) == [(0, 3, 2), (5, 9, 2)]
    share.wake(NOW_MS + 90_000)
    acquire(share, (0, 9))
    settle(share, 4, 4, RELEASE)
    assert share.next_time_ms is None, "it counts for one delivery"


def test_a_hint_is_used_when_the_lock_expires_or_the_member_is_gone() -> None:
    for end in (lambda share: share.expire(LOCK_MS, now_ms=NOW_MS), lambda share: share.release("m1", now_ms=NOW_MS)):
        share = window()
        acquire(share, (0, 0))
        share.delay(0, Hint(7_000))
        end(share)
        assert share.next_time_ms == NOW_MS + 7_000


@pytest.mark.parametrize(("offset", "member"), [(0, "m2"), (5, "m1"), (50, "m1"), (-1, "m1"), (1, None)])
def test_a_hint_for_what_is_not_held_is_refused(offset: int, member: str | None) -> None:
    share = window()
    acquire(share, (0, 9))
    settle(share, 1, 5, ACCEPT)
    with pytest.raises(KafkaError) as refused:
        share.delay(offset, Hint(1_000), member)
    assert refused.value.code is ErrorCode.invalid_record_state


# One slow record.


def test_records_that_are_done_with_take_no_locks() -> None:
    share = window(max_locks=10)
    acquire(share, (0, 9))
    settle(share, 1, 9, ACCEPT)
    for base in range(10, 5_000, 9):
        assert acquire(share, (base, base + 8)) == [(base, base + 8, 1)]
        settle(share, base, base + 8, ACCEPT)
    assert [run[:4] for run in share.runs] == [(0, 0, ACQUIRED, 1), (1, base + 8, ACKNOWLEDGED, 1)]


def test_so_many_records_may_wait_and_then_no_new_ones_are_delivered() -> None:
    share = window(max_locks=100, max_waiting=150)
    for base in range(0, 200, 100):
        assert share.can_acquire
        acquire(share, (base, base + 99))
        settle(share, base, base + 99, RELEASE)
    assert share.waiting == 200
    assert not share.can_acquire
    assert acquire(share, (200, 299)) == []
    share.wake(NOW_MS + 1_000)
    assert share.can_acquire
    assert acquire(share, (0, 199)) == [(0, 199, 2)]


def test_done_records_with_different_counts_become_one_run_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_window, "TIDY_AFTER", 4)
    share = window(backoff=None, max_locks=100)
    acquire(share, (0, 20))
    for offset in range(1, 20):
        settle(share, offset, offset, RELEASE if offset % 2 else ACCEPT)
    acquire(share, (0, 20))
    for offset in range(1, 20, 2):
        settle(share, offset, offset, ACCEPT)
    assert len(list(share.runs)) > 15
    start, complete, batches = share.to_write([(19, 19)])
    assert (start, complete, batches) == (0, 19, [StateBatch(1, 19, ACKNOWLEDGED, 2)])
    assert share.to_write([(19, 19)]).batches == batches, "until it is written"
    share.written()
    assert share.to_write([(19, 19)]).batches == [StateBatch(19, 19, ACKNOWLEDGED, 2)]
    assert [run[:4] for run in share.runs] == [(0, 0, ACQUIRED, 1), (1, 19, ACKNOWLEDGED, 2), (20, 20, ACQUIRED, 1)]


def test_a_delivery_ends_before_a_long_stretch_of_records_that_are_done_with() -> None:
    share = window(max_locks=2000)
    acquire(share, (0, 1_999), most=2_000)
    settle(share, 1, 1_998, ACCEPT)
    settle(share, 0, 0, RELEASE)
    settle(share, 1_999, 1_999, RELEASE)
    share.wake(NOW_MS + 1_000)
    assert share.reach(500) == 0
    assert acquire(share, (0, 0)) == [(0, 0, 2)]
    assert share.reach(500) == 1_999 + 499


# Dead letters.


def test_what_has_failed_for_good_waits_for_its_dead_letter() -> None:
    share = window(has_dead_letters=True, backoff=None)
    acquire(share, (0, 9))
    share.delay(1, Hint(text="bad json"))
    settle(share, 1, 1, REJECT)
    settle(share, 0, 0, ACCEPT)
    settle(share, 2, 2, GAP)
    assert share.start_offset == 1
    assert written(share, 1, 1) == [StateBatch(1, 1, ARCHIVING, 1, 1, 0, Reason.REJECTED)]
    assert share.dead_letters() == [DeadLetters(1, 1, Reason.REJECTED, 1, "bad json")]
    assert share.archive([(0, 9)]) == [(1, 1)]
    assert written(share, 1, 1) == []
    assert share.to_write([(1, 1)]).start_offset == 3
    assert share.start_offset == 3
    assert share.archive([(0, 9)]) == []


def test_deliveries_that_are_used_up_are_dead_letters_too_and_take_locks() -> None:
    share = window(has_dead_letters=True, backoff=None, max_locks=10)
    for _ in range(3):
        acquire(share, (0, 9), most=1)
        settle(share, 0, 0, RELEASE)
    assert share.dead_letters() == [DeadLetters(0, 0, Reason.LIMIT, 3)]
    assert acquire(share, (1, 20), most=50) == [(1, 9, 1)]
    for offset in range(1, 10):
        settle(share, offset, offset, REJECT)
    assert not share.can_acquire, "ten dead letters are missing"
    share.archive([(0, 3)])
    assert acquire(share, (10, 20), most=50) == [(10, 13, 1)]


def test_a_new_leader_finds_the_dead_letters_that_are_missing() -> None:
    batches = [StateBatch(0, 4, ARCHIVING, 3, 3, 0, Reason.LIMIT)]
    assert window(batches, has_dead_letters=True).dead_letters() == [DeadLetters(0, 4, Reason.LIMIT, 3)]
    share = window(batches)
    assert share.start_offset == 5, "the group has no dead-letter topic any more"


def test_what_was_tried_and_is_deleted_from_the_log_gets_a_dead_letter() -> None:
    share = window(has_dead_letters=True)
    acquire(share, (0, 9))
    settle(share, 2, 3, RELEASE)
    settle(share, 4, 4, ACCEPT)
    assert share.log_start_moved(20) == [(2, 3)]
    assert share.dead_letters() == [DeadLetters(2, 3, Reason.DELETED, 1)]
    assert written(share, 2, 3) == [StateBatch(2, 3, ARCHIVING, 1, 1, 0, Reason.DELETED)]
    assert (share.start_offset, share.end_offset, share.next_fetch_offset) == (0, 20, 20)
    assert share.log_start_moved(20) == []
    settle(share, 0, 1, ACCEPT)
    settle(share, 5, 9, RELEASE)
    assert share.log_start_moved(20) == [(5, 9)], "its member has given it back, and it is gone"
    share.archive([(2, 9)])
    assert share.start_offset == share.end_offset == 20


def test_what_was_never_delivered_and_is_deleted_from_the_log_gets_no_dead_letter() -> None:
    share = window([StateBatch(1, 1, AVAILABLE, 1, 1, NOW_MS + 1_000)], has_dead_letters=True)
    share.include(6)
    assert share.log_start_moved(8) == [(1, 1)]
    assert share.archive([(0, 7)]) == [(1, 1)]
    assert share.start_offset == share.end_offset == 8


def test_without_dead_letters_what_is_deleted_from_the_log_is_gone() -> None:
    share = window()
    acquire(share, (0, 9))
    settle(share, 2, 3, RELEASE)
    assert share.log_start_moved(5) == []
    assert (share.start_offset, share.waiting) == (5, 0)


# Records that are too old.


def test_records_that_are_too_old_are_not_delivered() -> None:
    share = window()
    assert acquire(share, (0, 4), (5, 9), expired=[(0, 4)]) == [(5, 9, 1)]
    assert share.start_offset == 5
    assert share.take_dropped() == [(0, 4)]
    assert share.take_dropped() == []


def test_records_that_are_too_old_are_dead_letters() -> None:
    share = window(has_dead_letters=True)
    acquire(share, (0, 4), most=2)
    settle(share, 0, 1, RELEASE)
    share.wake(NOW_MS + 1_000)
    assert acquire(share, (0, 4), (5, 6), (7, 9), expired=[(0, 4)], aborted=[(5, 6)]) == [(7, 9, 1)]
    assert share.take_dropped() == [(0, 1), (2, 4)]
    assert written(share, 0, 9) == [
        StateBatch(0, 1, ARCHIVING, 1, 1, 0, Reason.EXPIRED),
        StateBatch(2, 4, ARCHIVING, 0, 0, 0, Reason.EXPIRED),
        StateBatch(5, 6, ARCHIVED, 0),
        StateBatch(7, 9, AVAILABLE, 1),
    ]


# Very many at once.


def test_locks_of_a_gone_member_that_expire_before_their_turn_are_no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_window, "RUNS_AT_ONCE", 1)
    share = window()
    acquire(share, (0, 4))
    for offset in (1, 3):
        settle(share, offset, offset, ACCEPT)
    assert share.release("m1", now_ms=NOW_MS) == [(0, 0)]
    assert share.expire(2 * LOCK_MS, now_ms=NOW_MS) == [(2, 2)]
    assert share.expire(2 * LOCK_MS, now_ms=NOW_MS) == [(4, 4)]
    assert share.waiting == 0
    assert [run.failures for run in share.runs if run.state is AVAILABLE] == [0, 0, 0]


def test_a_member_that_goes_again_and_again_has_each_lock_released_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_window, "RUNS_AT_ONCE", 1)
    share = window()
    acquire(share, (0, 8))
    for offset in (1, 3, 5, 7):
        settle(share, offset, offset, ACCEPT)
    assert [share.release("m1", now_ms=NOW_MS) for _ in range(3)] == [[(0, 0)], [(2, 2)], [(4, 4)]]
    assert share.expire(1, now_ms=NOW_MS) == [(6, 6)]
    assert share.expire(1, now_ms=NOW_MS) == [(8, 8)]
    assert not share.is_releasing


def test_what_a_gone_member_acknowledges_before_its_turn_is_released_with_a_failed_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_window, "RUNS_AT_ONCE", 1)
    share = window()
    acquire(share, (0, 2))
    settle(share, 1, 1, ACCEPT)
    assert share.release("m1", now_ms=NOW_MS) == [(0, 0)]
    ranges = share.acknowledge("m1", [Acknowledgement(2, 2, [ACCEPT])], LOCK_MS, now_ms=NOW_MS)
    assert share.expire(1, now_ms=NOW_MS) == []
    assert share.roll_back(ranges, 1, now_ms=NOW_MS) == [(2, 2)]
    assert not share.is_releasing


def test_locks_and_times_that_end_together_are_taken_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_window, "RUNS_AT_ONCE", 3)
    share = window()
    acquire(share, (0, 19))
    for offset in range(1, 20, 2):
        settle(share, offset, offset, ACCEPT)
    expired = [share.expire(LOCK_MS, now_ms=NOW_MS) for _ in range(5)]
    assert expired == [
        [(0, 0), (2, 2), (4, 4)],
        [(6, 6), (8, 8), (10, 10)],
        [(12, 12), (14, 14), (16, 16)],
        [(18, 18)],
        [],
    ]
    assert share.next_due is None
    assert [share.wake(NOW_MS + 1_000) for _ in range(5)] == [True, True, True, True, False]
    assert share.waiting == 0
