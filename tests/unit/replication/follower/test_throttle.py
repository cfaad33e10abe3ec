"""The throttle of new replicas: a rate that is kept on average, and that may change while somebody waits."""

import pytest

from skep.replication.follower.throttle import LONGEST_WAIT_S, Throttle


class Rate:
    def __init__(self, bytes_per_second: int) -> None:
        self.now = bytes_per_second

    def __call__(self) -> int:
        return self.now


def test_what_came_has_to_be_paid_for_before_more_may_come() -> None:
    throttle = Throttle(Rate(1_000))
    assert throttle.took(500, now=100.0) == pytest.approx(0.5)
    assert throttle.wait_s(now=100.2) == pytest.approx(0.3)
    assert throttle.wait_s(now=100.5) == 0


def test_several_that_copy_at_the_same_time_share_the_rate() -> None:
    throttle = Throttle(Rate(1_000))
    throttle.took(300, now=100.0)
    assert throttle.took(300, now=100.0) == pytest.approx(0.6)


def test_time_in_which_nothing_was_copied_is_not_saved_up() -> None:
    throttle = Throttle(Rate(1_000))
    throttle.took(100, now=100.0)
    assert throttle.took(500, now=200.0) == pytest.approx(0.5)


def test_the_rate_is_kept_over_a_long_copy() -> None:
    throttle, now = Throttle(Rate(1_000)), 100.0
    for _ in range(10):
        now += throttle.took(2_500, now)
        while (wait_s := throttle.wait_s(now)) > 0:
            now += wait_s
    assert now == pytest.approx(125.0)


def test_a_long_wait_is_cut_short_by_a_higher_rate() -> None:
    rate = Rate(1)
    throttle = Throttle(rate)
    assert throttle.took(1_000_000, now=100.0) == LONGEST_WAIT_S, "to be asked again, not to go on"
    assert throttle.wait_s(now=101.0) == LONGEST_WAIT_S
    rate.now = 1 << 62
    assert throttle.wait_s(now=102.0) == pytest.approx(0, abs=1e-9)
    assert throttle.wait_s(now=102.0 + 1e-9) == 0


def test_a_higher_rate_does_not_count_for_the_time_before_it() -> None:
    rate = Rate(100)
    throttle = Throttle(rate)
    throttle.took(1_000, now=100.0)
    rate.now = 1_000
    assert throttle.wait_s(now=101.0) == pytest.approx(0.9)
    rate.now = 100
    assert throttle.wait_s(now=101.5) == LONGEST_WAIT_S, "850 bytes are left"
    assert throttle.wait_s(now=109.9) == pytest.approx(0.1)


def test_a_rate_of_nothing_stops_the_copy_and_nothing_else() -> None:
    throttle = Throttle(Rate(0))
    assert throttle.took(1_000_000, now=100.0) == LONGEST_WAIT_S
    assert throttle.wait_s(now=1_000.0) == LONGEST_WAIT_S
