"""Timers by key: put off, replaced, cancelled, due in order."""

from hypothesis import given
from hypothesis import strategies as st

from skep.coordination.timers import Timers
from tests.manual_clock import ManualClock


def test_a_timer_is_due_once_when_its_time_has_come():
    clock = ManualClock()
    timers = Timers(clock)
    timers.schedule("a", 100, lambda shard: "a")
    clock.advance_ms(99)
    assert list(timers.take_due()) == []
    clock.advance_ms(1)
    assert [due(None) for due in timers.take_due()] == ["a"]
    assert list(timers.take_due()) == []
    assert "a" not in timers


def test_a_timer_that_is_put_off_waits_and_one_that_is_brought_forward_does_not():
    clock = ManualClock()
    timers = Timers(clock)
    timers.schedule("off", 100, lambda shard: "early")
    timers.schedule("off", 300, lambda shard: "late")
    timers.schedule("forward", 300, lambda shard: "late")
    timers.schedule("forward", 50, lambda shard: "early")
    clock.advance_ms(100)
    assert [due(None) for due in timers.take_due()] == ["early"]
    clock.advance_ms(200)
    assert [due(None) for due in timers.take_due()] == ["late"]


def test_whoever_looks_after_the_timers_is_told_of_an_earlier_moment():
    told = []
    timers = Timers(ManualClock(), lambda: told.append(timers.next_moment()))
    timers.schedule("a", 1000, print)
    timers.schedule("b", 2000, print)
    timers.schedule("c", 500, print)
    assert told == [1.0, 0.5]


def test_cancelled_timers_do_not_pile_up():
    timers = Timers(ManualClock())
    for number in range(10_000):
        timers.schedule(number, 1_000_000, print)
        timers.cancel(number)
    assert len(timers) == 0
    assert len(timers._heap) < 200


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(1, 30)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_timers_do_what_a_plain_table_would(steps):
    clock, model, now = ManualClock(), {}, 0
    timers = Timers(clock)
    for place, (step, key, amount) in enumerate(steps):
        if step == "schedule":
            timers.schedule(key, amount, lambda shard, key=key, place=place: (key, place))
            model[key] = (now + amount, place)
        elif step == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            clock.advance_ms(amount)
            now += amount
            due = {(key, place) for key, (moment, place) in model.items() if moment <= now}
            model = {key: value for key, value in model.items() if value[0] > now}
            assert {operation(None) for operation in timers.take_due()} == due
        assert len(timers) == len(model)
