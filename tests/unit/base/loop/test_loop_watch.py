"""The watch over the event loop, with loops that are really blocked; the bounds in the tests are far apart."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from skep.base.loop import loop_watch
from skep.base.loop.loop_watch import BOUNDS_MS, TICK_S, DelayHistogram, LoopWatch, request_of
from skep.base.loop.slicer import Slicer
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

PATIENCE_S = 30.0


@pytest.fixture
def hung() -> threading.Event:
    return threading.Event()


def hold(until: threading.Event) -> None:
    """Holds the loop until somebody noticed."""
    assert until.wait(PATIENCE_S)


def hold_as_skep(until: Callable[[], object]) -> None:
    """Holds the loop in a function of ours, ``skep.held.hold_on``, until the watch has looked who holds it."""
    held: dict[str, Any] = {"__name__": "skep.held", "wait_until": wait_until, "until": until}
    exec(compile("def hold_on(): wait_until(until, 'the watch looks')", "held.py", "exec"), held)
    held["hold_on"]()


def test_a_loop_that_hangs_is_reported_once_from_another_thread(hung: threading.Event) -> None:
    # By the last tick before the hang: on a busy machine the loop may hang before it is held, which is another one.
    calls: list[tuple[bool, float]] = []

    async def scenario() -> None:
        def on_hang() -> None:
            calls.append((threading.current_thread() is threading.main_thread(), watch._ticked))
            hung.set()

        watch = LoopWatch(1000, 4 * TICK_S, on_hang)
        watch.start()
        await asyncio.sleep(2 * TICK_S)
        hold(hung)
        time.sleep(8 * TICK_S)
        watch.stop()
        assert calls
        assert len(set(calls)) == len(calls)
        assert not any(is_in_main_thread for is_in_main_thread, _ in calls)

    asyncio.run(scenario())


def test_a_loop_that_turns_does_not_hang(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        watch = LoopWatch(1000, PATIENCE_S, lambda: pytest.fail("it did not hang"))
        watch.start()
        while sum(watch.delays.counts) < 4:
            await asyncio.sleep(TICK_S)
        watch.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert caplog.messages == [], "nor is there anything to say of its delays"


def test_who_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        watch = LoopWatch(TICK_S, PATIENCE_S, lambda: None)
        watch.start()
        hold_as_skep(until=lambda: watch._holder)
        while not watch.delays.worst_s:
            await asyncio.sleep(TICK_S)
        watch.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert any("the event loop was blocked for" in line and "skep.held.hold_on" in line for line in caplog.messages)


def test_delays_are_counted_by_their_bounds() -> None:
    histogram = DelayHistogram()
    for delay_ms in (0.5, 0.5, 3, 30, 60_000):
        histogram.add(delay_ms / 1000)
    assert histogram.counts[0] == 2
    assert histogram.counts[BOUNDS_MS.index(5)] == 1
    assert histogram.counts[BOUNDS_MS.index(50)] == 1
    assert histogram.counts[-1] == 1
    assert histogram.worst_s == 60
    assert str(histogram) == "2 below 1 ms, 1 below 5 ms, 1 below 50 ms, 1 above; worst 60000 ms"


@pytest.mark.parametrize("when", ["every hour", "at the end"])
def test_the_histogram_is_logged_if_a_tick_was_too_late(when: str, monkeypatch, caplog) -> None:
    monkeypatch.setattr(loop_watch, "SUMMARY_EVERY_S", 0 if when == "every hour" else 3600)

    async def scenario(watch: LoopWatch) -> None:
        watch.start()
        time.sleep(4 * TICK_S)
        async with asyncio.timeout(PATIENCE_S):
            while not watch.delays.worst_s and not caplog.messages:
                await asyncio.sleep(TICK_S)
        assert bool(summaries()) == (when == "every hour")
        watch.stop()

    def summaries() -> list[str]:
        return [line for line in caplog.messages if line.startswith("delays of the event loop in ")]

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario(LoopWatch(TICK_S, PATIENCE_S, lambda: None)))
        [line] = summaries()
        assert "; worst " in line


class Asked:
    def who(self) -> str:
        return "Metadata of a client"


def test_the_request_that_is_worked_on_is_found_among_the_callers() -> None:
    def inner() -> Any:
        request = "not one that says who asks"
        return request and request_of(sys._getframe())

    async def handler() -> Any:
        return inner()

    async def finish(request: Asked) -> Any:
        return await handler()

    asked = Asked()
    assert asyncio.run(finish(asked)) is asked
    assert asyncio.run(handler()) is None


def test_work_that_goes_on_in_a_later_slice_is_known_to_be_of_its_request() -> None:
    clock = ManualClock()
    slicer = Slicer(clock)
    found: list[Any] = []

    def work() -> Any:
        for _ in range(3):
            found.append(request_of(sys._getframe()))
            clock.advance_ms(1000)
            yield

    async def handle(request: Asked) -> None:
        await slicer.finish(work())

    async def scenario() -> None:
        await asyncio.gather(asyncio.create_task(handle(asked)), asyncio.create_task(slicer.finish(work())))

    asked = Asked()
    asyncio.run(scenario())
    assert found.count(asked) == found.count(None) == 3


def test_a_log_line_says_whose_request_held_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(request: Asked) -> None:
        watch = LoopWatch(TICK_S, PATIENCE_S, lambda: None)
        watch.start()
        hold_as_skep(until=lambda: watch._holder)
        while not watch.delays.worst_s:
            await asyncio.sleep(TICK_S)
        watch.stop()

    asyncio.run(handle(Asked()))
    assert any("skep.held.hold_on, line 1, for Metadata of a client" in line for line in caplog.messages)
