"""Time as a parameter: everything below ``app.py`` asks a ``Clock``, so that tests need not sleep."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored and shown, monotonic time for what is waited for."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment, never goes back."""
        ...


class SystemClock:
    # The function itself: every request asks, and a method around it would take three times as long.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that a test moves by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance_ms(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._monotonic += milliseconds / 1000
