"""Time as a parameter, so that tests need not sleep. ``CONTRIBUTING.md`` says which code uses a ``Clock``."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for waits."""

    def now_ms(self) -> int:
        """Returns milliseconds since 1970. May jump."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary moment. Never decreases."""
        ...


class SystemClock:
    # The function itself: every request calls it, and a method around it would take three times as long.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
