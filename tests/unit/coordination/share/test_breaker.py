"""The breaker: opens when too many records die, tries single ones after the pause, and closes with an accepted one."""

from hypothesis import given
from hypothesis import strategies as st

from skep.coordination.share.breaker import Breaker, BreakerLimits

LIMITS = BreakerLimits(percent=50, window_ms=1_000, min_records=4, pause_ms=200)


def allowed(breaker: Breaker, now_ms: int, *, limits: BreakerLimits = LIMITS, is_any_held: bool = False) -> int | None:
    return breaker.allowed(limits, now_ms, is_any_held=is_any_held)


def opened(now_ms: int = 0) -> Breaker:
    breaker = Breaker()
    assert breaker.finished(LIMITS, now_ms, accepted=0, died=4)
    return breaker


def test_it_opens_when_more_than_the_percentage_has_died() -> None:
    breaker = Breaker()
    assert not breaker.finished(LIMITS, 0, accepted=2, died=2)
    assert allowed(breaker, 0) is None
    assert breaker.finished(LIMITS, 100, accepted=0, died=1)
    assert allowed(breaker, 100) == 0


def test_a_few_dead_records_say_nothing() -> None:
    breaker = Breaker()
    assert not breaker.finished(LIMITS, 0, accepted=0, died=3)
    assert allowed(breaker, 0) is None


def test_what_is_long_ago_is_forgotten() -> None:
    breaker = Breaker()
    breaker.finished(LIMITS, 0, accepted=0, died=3)
    assert not breaker.finished(LIMITS, 1_100, accepted=0, died=3)


def test_after_the_pause_one_record_at_a_time_is_tried() -> None:
    breaker = opened()
    assert allowed(breaker, 199) == 0
    assert allowed(breaker, 200) == 1
    assert allowed(breaker, 200, is_any_held=True) == 0


def test_a_record_that_dies_begins_the_next_pause_and_an_accepted_one_ends_it() -> None:
    breaker = opened()
    assert breaker.finished(LIMITS, 250, accepted=0, died=1)
    assert allowed(breaker, 449) == 0
    assert not breaker.finished(LIMITS, 450, accepted=1, died=0)
    assert allowed(breaker, 450) is None


def test_records_that_were_delivered_before_do_not_end_the_pause() -> None:
    breaker = opened()
    assert not breaker.finished(LIMITS, 100, accepted=50, died=0)
    assert allowed(breaker, 100) == 0


def test_without_a_percentage_it_never_opens_and_closes_at_once() -> None:
    off = LIMITS._replace(percent=0)
    breaker = Breaker()
    assert not breaker.finished(off, 0, accepted=0, died=1_000)
    assert allowed(opened(), 1, limits=off) is None


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_it_agrees_with_counting_everything(steps: list[tuple[int, int, int]]) -> None:
    """While it is closed it opens exactly when the records of the last ten parts of time say so."""
    breaker, now, seen = Breaker(), 0, []
    for later, accepted, died in steps:
        now += later
        seen.append((now // 100, accepted + died, died))
        recent = [one for one in seen if one[0] > now // 100 - 10]
        finished, dead = sum(one[1] for one in recent), sum(one[2] for one in recent)
        opens = breaker.finished(LIMITS, now, accepted, died)
        assert opens == (finished >= 4 and dead * 2 > finished)
        if opens:
            return
        assert len(breaker._slices) <= 10
