"""Watches the event loop: how late it is, what blocks it, and whether it still runs.

The loop ticks every ``TICK_S``. The lateness of a tick is the delay that every client sees, and is added to a
histogram. A thread watches the ticks. While one is overdue, it records where the loop's thread is, so that the log line
can name what blocks it. If the loop does not tick for a whole session timeout, it hangs, although its process is alive
and other threads keep its session. Then the session is ended, so that another broker can lead.

The histogram is logged every hour in which a delay was long enough for a line of its own, and when the watch stops.

The request that the loop works on is read from the stack: the nearest caller that has a local variable ``request`` with
a method ``who``. No code has to record it, so it costs nothing while nothing is slow.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

logger = logging.getLogger(__name__)

TICK_S = 0.05
BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
REPORT_AT_MOST_EVERY_S = 1.0
SUMMARY_EVERY_S = 3600.0
OURS = "skep"


class DelayHistogram:
    """Counts ticks by lateness: ``counts[i]`` were late by less than ``BOUNDS_MS[i]``, the last entry by more."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.worst_s = 0.0

    def add(self, delay_s: float) -> None:
        delay_ms = delay_s * 1000
        place = next((i for i, bound in enumerate(BOUNDS_MS) if delay_ms < bound), len(BOUNDS_MS))
        self.counts[place] += 1
        self.worst_s = max(self.worst_s, delay_s)

    def __str__(self) -> str:
        named = [f"{count} below {bound} ms" for bound, count in zip(BOUNDS_MS, self.counts, strict=False) if count]
        more = [f"{self.counts[-1]} above"] if self.counts[-1] else []
        return f"{', '.join(named + more)}; worst {self.worst_s * 1000:.0f} ms"


class LoopWatch:
    """Owns the ticks of the loop in which it is started, and the thread that watches them.

    Delays of ``warn_s`` or more are logged. When there was no tick for ``hang_s``, the thread calls ``on_hang``, once
    for each time the loop hangs. The watch reads ``time.monotonic`` itself: it measures the real loop.
    """

    def __init__(self, warn_s: float, hang_s: float, on_hang: Callable[[], None]) -> None:
        self.warn_s = warn_s
        self.delays = DelayHistogram()
        self._hang_s = hang_s
        self._on_hang = on_hang
        self._ticked = time.monotonic()
        self._handle: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._holder = ""
        self._reported = -REPORT_AT_MOST_EVERY_S
        self._unreported = 0
        self._late = 0
        self._summed_up = self._ticked
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="loop-watch", daemon=True)

    def start(self) -> None:
        self._loop_thread = threading.get_ident()
        self._ticked = self._summed_up = time.monotonic()
        self._schedule()
        self._thread.start()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._sum_up(time.monotonic())

    def _schedule(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        delay_s = max(0.0, now - self._ticked - TICK_S)
        holder, self._holder = self._holder, ""
        self._ticked = now
        self.delays.add(delay_s)
        if delay_s >= self.warn_s:
            self._late += 1
            self._report(now, delay_s, holder)
        if now - self._summed_up >= SUMMARY_EVERY_S:
            self._sum_up(now)
        self._schedule()

    def _sum_up(self, now: float) -> None:
        """Logs the histogram if a tick since the last summary was too late, and begins a new one."""
        if self._late:
            took_s = now - self._summed_up
            logger.info("delays of the event loop in %.0f s: %s", took_s, self.delays)
        self.delays, self._late, self._summed_up = DelayHistogram(), 0, now

    def _report(self, now: float, delay_s: float, holder: str) -> None:
        if now - self._reported < REPORT_AT_MOST_EVERY_S:
            self._unreported += 1
            return
        more = f"; {self._unreported} more since the last report" if self._unreported else ""
        self._reported, self._unreported = now, 0
        where = f" in {holder}" if holder else ", or the process did not run"
        logger.warning("the event loop was blocked for %.0f ms%s%s", delay_s * 1000, where, more)

    def _look(self) -> None:
        hung_since = 0.0
        # A pause of this thread (the process was stopped, or the interpreter was held) says nothing about the loop.
        looked = time.monotonic()
        while not self._stopped.wait(TICK_S):
            now = time.monotonic()
            pause_s, looked = now - looked, now
            ticked = self._ticked
            silent_s = now - ticked - TICK_S
            if silent_s >= self.warn_s and not self._holder:
                self._holder = self._where()
            if silent_s >= self._hang_s and ticked != hung_since and pause_s < self._hang_s:
                hung_since = ticked
                logger.error("the event loop has not run for %.1f s, in %s", silent_s, self._where() or "?")
                self._on_hang()

    def _where(self) -> str:
        """Returns the innermost Skep function on the loop's stack, and the request that it works on."""
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.split(".")[0] == OURS:
                request = request_of(frame)
                of_whom = f", for {request.who()}" if request is not None else ""
                return f"{module}.{frame.f_code.co_name}, line {frame.f_lineno}{of_whom}"
            frame = frame.f_back
        return ""


class HandledRequest(Protocol):
    def who(self) -> str:
        """Returns the API and the client of the request, for a log line."""
        ...


def request_of(frame: FrameType | None) -> HandledRequest | None:
    """Returns the request of this frame or of its nearest caller that has one."""
    while frame is not None:
        if "request" in frame.f_code.co_varnames:
            found = frame.f_locals.get("request")
            if hasattr(type(found), "who"):
                request: HandledRequest | None = found
                return request
        frame = frame.f_back
    return None
