"""Clocks for tests: one that a test moves by hand, and one that moves at each reading."""


class ManualClock:
    """A ``Clock`` that stands still until ``advance_ms`` moves it."""

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


class TickingClock(ManualClock):
    """Advances by a millisecond each time it is read, so that five steps of any work fill a slice."""

    def monotonic(self) -> float:
        self.advance_ms(1)
        return super().monotonic()
