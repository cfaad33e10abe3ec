"""The watch over the event loop, with loops that are really held; bounds in the tests are far apart."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from skep.base.loop_watch import BOUNDS_MS, TICK_S, DelayHistogram, LoopWatch

PATIENCE_S = 30.0


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    yield threading.Event()


def hold(until: threading.Event) -> None:
    """Holds the loop until somebody noticed."""
    assert until.wait(PATIENCE_S)


def test_a_loop_that_hangs_is_reported_once_from_another_thread(hung: threading.Event) -> None:
    calls = []

    def on_hang() -> None:
        calls.append(threading.current_thread() is threading.main_thread())
        hung.set()

    async def scenario() -> None:
        watch = LoopWatch(1000, 4 * TICK_S, on_hang)
        watch.start()
        await asyncio.sleep(2 * TICK_S)
        hold(hung)
        time.sleep(8 * TICK_S)
        assert calls == [False]
        watch.stop()

    asyncio.run(scenario())


def test_a_loop_that_turns_does_not_hang() -> None:
    async def scenario() -> None:
        watch = LoopWatch(1000, PATIENCE_S, lambda: pytest.fail("it did not hang"))
        watch.start()
        while sum(watch.delays.counts) < 4:
            await asyncio.sleep(TICK_S)
        watch.stop()

    asyncio.run(scenario())


def test_who_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        watch = LoopWatch(TICK_S, PATIENCE_S, lambda: None)
        watch.start()
        # The function that is looked for has to be one of ours.
        held: dict[str, Any] = {"__name__": "skep.held", "sleep": time.sleep}
        exec(compile("def hold_on(): sleep(0.6)", "held.py", "exec"), held)
        held["hold_on"]()
        while not watch.delays.worst_s:
            await asyncio.sleep(TICK_S)
        watch.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert any("the event loop was held for" in line and "skep.held.hold_on" in line for line in caplog.messages)


def test_delays_are_counted_by_their_bounds() -> None:
    histogram = DelayHistogram()
    for delay_ms in (0.5, 0.5, 3, 30, 60_000):
        histogram.add(delay_ms / 1000)
    assert histogram.counts[0] == 2
    assert histogram.counts[BOUNDS_MS.index(5)] == 1
    assert histogram.counts[BOUNDS_MS.index(50)] == 1
    assert histogram.counts[-1] == 1
    assert histogram.worst_s == 60
    assert histogram.quantile_ms(0.5) == 5
    assert histogram.quantile_ms(0.99) == float("inf")
