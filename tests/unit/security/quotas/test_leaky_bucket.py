"""The measure of a quota: never more than the rate and a burst, never less than the rate."""

import math

from hypothesis import given
from hypothesis import strategies as st

from skep.security.quotas.leaky_bucket import LONGEST_WAIT_S, LeakyBucket

RATES = st.floats(0.5, 1e9)
USES = st.lists(st.tuples(st.floats(0, 30), st.floats(0, 1e9)), min_size=1, max_size=50)
"""Pauses in seconds, each followed by what is used."""


def test_a_burst_is_free_and_what_is_over_it_is_waited_for():
    bucket = LeakyBucket(rate=1000, burst=500, now=0)
    assert bucket.use(400, 0) == 0
    assert bucket.use(600, 0) == 0.5
    assert bucket.wait_s(0.25) == 0.25
    assert bucket.wait_s(0.5) == 0
    assert bucket.use(1, 0.5) == 0.001


def test_a_time_without_use_gives_no_more_than_a_burst():
    bucket = LeakyBucket(rate=1000, burst=500, now=0)
    assert bucket.use(1500, 1_000_000) == 1


def test_another_rate_counts_from_now_on():
    bucket = LeakyBucket(rate=10, burst=0, now=0)
    bucket.use(100, 0)
    bucket.change(1000, 0, 5)
    assert bucket.wait_s(5) == 0.05


def test_a_lower_rate_makes_nobody_wait_longer_for_what_was_used_before():
    active, in_debt = (LeakyBucket(rate=100e6, burst=50e6, now=0) for _ in range(2))
    assert active.use(50e6, 0) == 0
    assert in_debt.use(250e6, 0) == 2
    for bucket in (active, in_debt):
        bucket.change(1000, 500, 0)
    assert active.wait_s(0) == 0
    assert in_debt.wait_s(0) == 2
    assert active.use(1000, 0) == 1


def test_the_same_rate_again_forgives_nothing():
    bucket = LeakyBucket(rate=10, burst=0, now=0)
    bucket.use(100, 0)
    bucket.change(10, 0, 0)
    assert bucket.wait_s(0) == 10


def test_a_wait_fits_into_the_field_of_a_response():
    assert LeakyBucket(1e-300, 0, 0).use(1, 0) == LONGEST_WAIT_S


@given(RATES, st.floats(0, 1e9), USES)
def test_a_client_that_waits_uses_the_rate_a_burst_and_one_use_at_most(rate, burst, uses):
    bucket, now, used = LeakyBucket(rate, burst, 0.0), 0.0, []
    for pause, amount in uses:
        now += pause
        used.append((now, amount))
        wait_s = bucket.use(amount, now)
        assert 0 <= wait_s <= LONGEST_WAIT_S
        if wait_s == LONGEST_WAIT_S:
            return
        now += wait_s
    for first in range(len(used)):
        for last in range(first, len(used)):
            total = math.fsum(amount for _, amount in used[first:last])
            allowed = burst + rate * (used[last][0] - used[first][0])
            assert total <= allowed * (1 + 1e-6) + 1


@given(RATES, st.floats(0, 1e6), st.lists(st.floats(1, 1e6), min_size=1, max_size=50))
def test_a_client_that_always_has_more_gets_the_rate_at_least(rate, burst, amounts):
    bucket, now = LeakyBucket(rate, burst, 0.0), 0.0
    for amount in amounts:
        now += bucket.use(amount, now)
    assert math.fsum(amounts) >= rate * now * (1 - 1e-6) - 1


@given(RATES, USES)
def test_a_bucket_empties_and_is_like_a_new_one_then(rate, uses):
    bucket, now = LeakyBucket(rate, 0, 0.0), 0.0
    for pause, amount in uses:
        now += pause
        bucket.use(amount, now)
    total = math.fsum(amount for _, amount in uses)
    now += 2 * total / rate + 1
    assert bucket.is_empty(now)
    assert bucket.wait_s(now) == 0
