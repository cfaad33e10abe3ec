"""The share window by examples: what others got wrong (KAFKA-18494, 19476, 19789, ...), and the rules of KIP-932."""

from collections.abc import Sequence

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType, check_acknowledgements
from skep.coordination.share.acquisition import Order
from skep.coordination.share.delivery_rules import DeliveryRules
from skep.coordination.share.delivery_runs import OffsetRange
from skep.coordination.share.share_state import DeliveryState, StateBatch
from skep.coordination.share.share_window import RUNS_AT_ONCE, ShareWindow, Write

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = DeliveryState
LOCK_S = 30.0


def window(start: int = 0, batches: Sequence[StateBatch] = (), limit: int = 5, max_locks: int = 2000) -> ShareWindow:
    return ShareWindow.restored(start, batches, DeliveryRules(limit, max_locks))


def acquire(
    share: ShareWindow,
    *batches: OffsetRange,
    member: str = "m1",
    most: int = 500,
    size: int = 500,
    now: float = 0.0,
    exact: bool = False,
    aborted: Sequence[OffsetRange] = (),
) -> list[tuple[int, int, int]]:
    order = Order(member, most, size, exact)
    return [tuple(one) for one in share.acquire(order, batches, now + LOCK_S, aborted=aborted)]  # type: ignore[misc]


def acknowledge(
    share: ShareWindow, first: int, last: int, *types: int, member: str = "m1", now: float = 0.0
) -> list[OffsetRange]:
    return share.acknowledge(member, [Acknowledgement(first, last, types)], now + LOCK_S)


def settle(share: ShareWindow, first: int, last: int, *types: int, member: str = "m1") -> None:
    share.commit(acknowledge(share, first, last, *types, member=member))


def states(share: ShareWindow) -> list[tuple[int, int, DeliveryState, int]]:
    return [run[:4] for run in share.runs]


def refusal(share: ShareWindow, first: int, last: int, *types: int, member: str = "m1") -> ErrorCode:
    before = states(share)
    with pytest.raises(KafkaError) as refused:
        acknowledge(share, first, last, *types, member=member)
    assert states(share) == before
    return refused.value.code


# Acquiring.


def test_records_are_acquired_once_and_the_next_fetch_goes_on_behind_them() -> None:
    share = window()
    assert acquire(share, (0, 9), (10, 19)) == [(0, 19, 1)]
    assert share.next_fetch_offset == 20
    assert acquire(share, (20, 24), member="m2") == [(20, 24, 1)]
    assert [run.member for run in share.runs] == ["m1", "m2"]


def test_whole_batches_are_acquired_although_that_exceeds_the_wish() -> None:
    share = window()
    assert acquire(share, (0, 9), (10, 19), (20, 29), most=12) == [(0, 19, 1)]
    assert share.end_offset == 20


def test_acquired_records_are_grouped_by_batch_size_at_the_borders_of_batches() -> None:
    share = window()
    batches = (0, 4), (5, 9), (10, 11), (12, 30), (31, 32)
    assert acquire(share, *batches, most=100, size=7) == [(0, 9, 1), (10, 30, 1), (31, 32, 1)]


def test_the_record_limit_is_exact_and_the_rest_of_the_batch_stays_available() -> None:
    share = window()
    assert acquire(share, (0, 9), most=4, size=2, exact=True) == [(0, 3, 1)]
    assert share.next_fetch_offset == 4
    assert acquire(share, (0, 9), most=4, exact=True, member="m2") == [(4, 7, 1)]


def test_no_offset_is_given_twice_in_one_response() -> None:
    """KAFKA-19789."""
    share = window()
    acquire(share, (0, 9))
    settle(share, 2, 3, RELEASE)
    settle(share, 6, 6, RELEASE)
    assert acquire(share, (0, 9), (10, 14), member="m2") == [(2, 3, 2), (6, 6, 2), (10, 14, 1)]


def test_a_batch_that_begins_before_the_start_is_acquired_from_the_start_on() -> None:
    share = window(5)
    assert acquire(share, (0, 9)) == [(5, 9, 1)]


def test_the_window_is_full_at_its_limit_and_released_records_still_come() -> None:
    share = window(max_locks=10)
    acquire(share, (0, 9))
    assert not share.can_acquire
    assert acquire(share, (10, 19)) == []
    settle(share, 4, 4, RELEASE)
    assert share.can_acquire
    assert acquire(share, (0, 9), (10, 19)) == [(4, 4, 2)]
    settle(share, 0, 3, ACCEPT)
    assert share.can_acquire
    assert acquire(share, (10, 12), (13, 19)) == [(10, 19, 1)]


def test_reach_is_the_last_offset_that_an_acquire_can_need() -> None:
    share = window(max_locks=100)
    acquire(share, (0, 49))
    settle(share, 10, 19, RELEASE)
    assert share.reach(5) == 14
    assert share.reach(30) == 69
    assert share.reach(500) == 99


# What the log does.


def test_available_records_that_compaction_removed_are_archived() -> None:
    share = window()
    acquire(share, (0, 9), (10, 19))
    settle(share, 0, 19, RELEASE)
    assert acquire(share, (15, 19)) == [(15, 19, 2)]
    assert share.start_offset == 15


def test_a_hole_in_the_log_behind_the_window_is_passed() -> None:
    share = window()
    acquire(share, (0, 9))
    assert acquire(share, (5000, 5009)) == [(5000, 5009, 1)]
    settle(share, 0, 9, ACCEPT)
    assert share.start_offset == 5000


def test_a_hole_at_the_start_of_an_empty_window_moves_the_start() -> None:
    share = window(max_locks=10)
    assert acquire(share, (1000, 1004)) == [(1000, 1004, 1)]
    assert share.start_offset == 1000


def test_aborted_batches_are_archived_instead_of_acquired() -> None:
    share = window()
    assert acquire(share, (0, 4), (5, 9), (10, 14), aborted=[(5, 9)]) == [(0, 4, 1), (10, 14, 1)]
    settle(share, 0, 4, ACCEPT)
    assert share.start_offset == 10


def test_a_window_of_aborted_batches_alone_is_passed_at_once() -> None:
    share = window()
    assert acquire(share, (0, 4), (5, 9), aborted=[(0, 4), (5, 9)]) == []
    assert share.start_offset == share.end_offset == 10


def test_the_start_follows_the_log_start_and_acknowledgements_below_it_do_nothing() -> None:
    share = window()
    acquire(share, (0, 9))
    share.log_start_moved(5)
    assert share.start_offset == 5
    assert acknowledge(share, 0, 4, ACCEPT) == []
    assert acknowledge(share, 0, 9, ACCEPT) == [(5, 9)]
    share.log_start_moved(100)
    share.commit([(5, 9)])
    assert share.start_offset == share.end_offset == share.next_fetch_offset == 100


# Acknowledging.


def test_types_for_each_offset_do_not_become_the_last_one() -> None:
    share = window()
    acquire(share, (0, 4))
    settle(share, 0, 4, ACCEPT, RELEASE, REJECT, GAP, ACCEPT)
    assert states(share) == [(1, 1, AVAILABLE, 1), (2, 3, ARCHIVED, 1), (4, 4, ACKNOWLEDGED, 1)]
    assert share.delivery_complete_count == 3


def test_acknowledgements_are_refused_for_what_the_member_does_not_hold() -> None:
    share = window()
    assert refusal(share, 0, 0, ACCEPT) is ErrorCode.invalid_record_state
    acquire(share, (0, 9))
    acquire(share, (10, 19), member="m2")
    assert refusal(share, 5, 14, ACCEPT) is ErrorCode.invalid_record_state
    assert refusal(share, 20, 20, ACCEPT) is ErrorCode.invalid_request
    assert refusal(share, 15, 20, ACCEPT, member="m2") is ErrorCode.invalid_request
    assert refusal(share, 0, 1 << 62, ACCEPT) is ErrorCode.invalid_request
    settle(share, 3, 3, ACCEPT)
    assert refusal(share, 3, 3, ACCEPT) is ErrorCode.invalid_record_state
    assert refusal(share, 0, 9, ACCEPT) is ErrorCode.invalid_record_state


def test_one_bad_batch_refuses_all_batches_of_the_partition() -> None:
    share = window()
    acquire(share, (0, 9))
    before = list(share.runs)
    batches = [Acknowledgement(0, 4, [ACCEPT]), Acknowledgement(5, 9, [RENEW]), Acknowledgement(10, 10, [ACCEPT])]
    with pytest.raises(KafkaError):
        share.acknowledge("m1", batches, 99.0)
    assert list(share.runs) == before


def test_a_second_acknowledgement_during_the_write_is_refused() -> None:
    share = window()
    acquire(share, (0, 9))
    acknowledge(share, 0, 9, ACCEPT)
    assert refusal(share, 5, 5, RELEASE) is ErrorCode.invalid_record_state
    assert share.start_offset == 0
    assert share.next_fetch_offset == 10


def test_an_offset_that_is_in_two_batches_of_a_request_is_refused() -> None:
    share = window()
    acquire(share, (0, 9))
    with pytest.raises(KafkaError) as refused:
        share.acknowledge("m1", [Acknowledgement(0, 4, [ACCEPT]), Acknowledgement(4, 9, [ACCEPT])], LOCK_S)
    assert refused.value.code is ErrorCode.invalid_record_state


@pytest.mark.parametrize(
    ("batches", "renews"),
    [
        ([(5, 4, [1])], False),
        ([(0, 4, [1]), (2, 9, [1])], False),
        ([(0, 4, [])], False),
        ([(0, 4, [1, 1])], False),
        ([(0, 0, [5])], True),
        ([(0, 0, [-1])], True),
        ([(0, 0, [4])], False),
    ],
)
def test_batches_that_are_wrong_in_themselves_are_invalid(
    batches: list[tuple[int, int, list[int]]], renews: bool
) -> None:
    with pytest.raises(KafkaError) as refused:
        check_acknowledgements([Acknowledgement(*one) for one in batches], has_renew=True, is_renew_ack=renews)
    assert refused.value.code is ErrorCode.invalid_request


def test_renewals_are_unknown_to_version_1() -> None:
    renewal = [Acknowledgement(0, 0, [RENEW])]
    check_acknowledgements(renewal, has_renew=True, is_renew_ack=True)
    with pytest.raises(KafkaError):
        check_acknowledgements(renewal, has_renew=False, is_renew_ack=True)


def test_a_renewal_begins_the_lock_anew_and_needs_no_write() -> None:
    share = window()
    acquire(share, (0, 9))
    assert acknowledge(share, 0, 4, RENEW, now=20.0) == []
    assert share.expire(40.0) == [(5, 9)]
    assert share.next_due == 50.0


def test_renewals_again_and_again_take_no_memory() -> None:
    share = window()
    acquire(share, (0, 9))
    for moment in range(1_000):
        acknowledge(share, 0, 4, RENEW, now=float(moment))
    assert len(share._locks) < 100
    assert share.expire(30.0) == [(5, 9)]
    assert share.next_due == 1029.0


def test_a_group_may_forbid_renewals() -> None:
    share = window()
    acquire(share, (0, 9))
    with pytest.raises(KafkaError, match=r"share\.renew\.acknowledge\.enable"):
        share.acknowledge("m1", [Acknowledgement(0, 4, [RENEW])], 99.0, can_renew=False)


# Delivery counts.


def test_the_last_delivery_is_that_of_the_limit() -> None:
    share = window(limit=2)
    acquire(share, (0, 0))
    settle(share, 0, 0, RELEASE)
    assert acquire(share, (0, 0)) == [(0, 0, 2)]
    settle(share, 0, 0, RELEASE)
    assert share.start_offset == 1
    assert share.next_fetch_offset == 1


def test_records_that_fail_again_and_again_are_delivered_in_halves_and_at_last_alone() -> None:
    share = window(limit=6)
    batch = (0, 499)
    for count in (1, 2, 3):
        assert acquire(share, batch) == [(0, 499, count)]
        settle(share, 0, 499, RELEASE)
    assert acquire(share, batch, (500, 509)) == [(0, 249, 4)]
    assert acquire(share, batch, (500, 509), member="m2") == [(250, 499, 4)]
    settle(share, 0, 249, RELEASE)
    settle(share, 250, 499, RELEASE, member="m2")
    assert acquire(share, batch) == [(0, 124, 5)]
    settle(share, 0, 124, RELEASE)
    assert acquire(share, batch) == [(0, 0, 6)]
    settle(share, 0, 0, RELEASE)
    assert share.start_offset == 1


def test_a_suspicious_record_does_not_come_with_others() -> None:
    share = window(batches=[StateBatch(0, 0, AVAILABLE, 1), StateBatch(1, 1, AVAILABLE, 4)])
    assert acquire(share, (0, 9)) == [(0, 0, 2)]
    assert acquire(share, (0, 9)) == [(1, 1, 5)]
    assert acquire(share, (0, 9)) == [(2, 9, 1)]


# Locks and members.


def test_an_expired_lock_makes_records_available() -> None:
    share = window()
    acquire(share, (0, 9))
    assert share.next_due == LOCK_S
    assert share.expire(LOCK_S - 1) == []
    assert share.expire(LOCK_S) == [(0, 9)]
    assert states(share) == [(0, 9, AVAILABLE, 1)]
    assert refusal(share, 0, 9, ACCEPT) is ErrorCode.invalid_record_state


def test_a_lock_that_expires_during_a_failed_write_releases_the_records() -> None:
    """KAFKA-19476."""
    share = window()
    acquire(share, (0, 9))
    changed = acknowledge(share, 0, 9, ACCEPT)
    assert share.expire(LOCK_S + 1) == []
    assert share.next_due is None
    assert share.roll_back(changed, LOCK_S + 1) == [(0, 9)]
    assert states(share) == [(0, 9, AVAILABLE, 1)]


def test_a_failed_write_within_the_lock_gives_the_records_back_to_the_member() -> None:
    share = window()
    acquire(share, (0, 9))
    changed = acknowledge(share, 0, 9, REJECT)
    assert share.roll_back(changed, 1.0) == []
    assert share.next_due == LOCK_S
    settle(share, 0, 9, ACCEPT)
    assert share.start_offset == 10


def test_what_a_gone_member_holds_is_available_and_what_it_has_acknowledged_is_not() -> None:
    share = window()
    acquire(share, (0, 9))
    acquire(share, (10, 14), member="m2")
    changed = acknowledge(share, 0, 4, ACCEPT)
    assert share.release("m1") == [(5, 9)]
    assert share.next_fetch_offset == 5
    share.commit(changed)
    assert states(share) == [(5, 9, AVAILABLE, 1), (10, 14, ACQUIRED, 1)]


def test_what_a_gone_member_has_acknowledged_in_a_failed_write_is_available() -> None:
    share = window()
    acquire(share, (0, 9))
    changed = acknowledge(share, 0, 9, ACCEPT)
    share.release("m1")
    assert share.roll_back(changed, 1.0) == [(0, 9)]
    assert share.next_fetch_offset == 0


# Writing and restoring.


def test_the_start_of_a_write_is_that_after_it() -> None:
    share = window()
    acquire(share, (0, 9), (10, 19))
    assert share.to_write(acknowledge(share, 0, 9, ACCEPT)) == Write(10, 0, [])


def test_a_write_has_what_a_new_leader_needs_above_its_start() -> None:
    share = window()
    acquire(share, (0, 19))
    changed = acknowledge(share, 5, 9, ACCEPT) + acknowledge(share, 12, 12, RELEASE) + acknowledge(share, 10, 11, GAP)
    assert share.to_write(changed) == Write(
        0, 7, [StateBatch(5, 9, ACKNOWLEDGED, 1), StateBatch(10, 11, ARCHIVED, 1), StateBatch(12, 12, AVAILABLE, 1)]
    )


def test_a_released_record_that_was_acquired_again_before_the_write_counts_both_deliveries() -> None:
    share = window()
    acquire(share, (0, 4))
    released = share.expire(LOCK_S)
    acquire(share, (0, 4), member="m2", now=LOCK_S)
    assert share.to_write(released).batches == [StateBatch(0, 4, AVAILABLE, 2)]


def test_gaps_between_restored_batches_are_fetched_first_and_the_start_passes_them() -> None:
    """KAFKA-18494."""
    share = window(10, [StateBatch(21, 30, ACKNOWLEDGED, 1), StateBatch(36, 40, AVAILABLE, 2)])
    assert share.start_offset == 10
    assert share.next_fetch_offset == 10
    assert acquire(share, (10, 14), most=500) == [(10, 14, 1)]
    assert share.next_fetch_offset == 15
    assert acquire(share, (18, 35), most=500) == [(18, 20, 1), (31, 35, 1)]
    settle(share, 10, 14, ACCEPT)
    settle(share, 18, 20, ACCEPT)
    assert share.start_offset == 31
    settle(share, 31, 35, ACCEPT)
    assert share.start_offset == 36


def test_a_restored_window_begins_behind_what_is_done_with() -> None:
    share = window(10, [StateBatch(10, 19, ACKNOWLEDGED, 1), StateBatch(20, 29, ARCHIVED, 5)])
    assert share.start_offset == share.end_offset == 30


def test_what_was_to_be_written_to_a_dead_letter_queue_is_archived() -> None:
    assert window(0, [StateBatch(0, 9, ARCHIVING, 5)]).start_offset == 10


def test_restored_batches_below_the_start_are_left_out() -> None:
    share = window(10, [StateBatch(0, 4, AVAILABLE, 1), StateBatch(5, 14, AVAILABLE, 1)])
    assert states(share) == [(10, 14, AVAILABLE, 1)]


@pytest.mark.parametrize("second", [(9, 12), (3, 4), (15, 12)])
def test_a_state_that_contradicts_itself_is_refused(second: OffsetRange) -> None:
    with pytest.raises(KafkaError, match="wrong batch"):
        window(0, [StateBatch(0, 9, AVAILABLE, 1), StateBatch(*second, AVAILABLE, 1)])


def test_a_lock_that_a_member_got_after_it_went_is_not_released_with_its_earlier_ones() -> None:
    """The release of very many locks takes its time. One of them expires meanwhile, and the member comes back."""
    share = ShareWindow(0, DeliveryRules(5, max_locks=4000))
    count = RUNS_AT_ONCE + 2
    share.acquire(Order("m1", 2 * count, 2 * count), [(0, 2 * count - 1)], 50.0)
    accepted = share.acknowledge("m1", [Acknowledgement(2 * n + 1, 2 * n + 1, [1]) for n in range(count)], 50.0)
    share.commit(accepted)
    assert share.release("m1") == [(2 * n, 2 * n) for n in range(RUNS_AT_ONCE)]
    assert share.next_due == 0.0
    assert len(share._locks.take_due(50.0, 1)) == 1
    share._release([(2 * count - 2, 2 * count - 2)], 0, has_failed=True)
    share.acquire(Order("m1", 1, 1, is_record_limit=True), [(0, 2 * count - 1)], 90.0, only=[(2 * count - 2,) * 2])
    assert share.expire(1.0) == [(2 * count - 4, 2 * count - 4)]
    assert not share.is_releasing
    assert [run.due for run in share.runs if run.is_held] == [90.0]
