"""Limits the rate at which replicas catch up, so that the rest of the broker's work does not suffer."""

from collections.abc import Callable

LONGEST_WAIT_S = 1.0
"""The wait is at most this long, so that an operator's higher rate takes effect."""


class Throttle:
    """Counts copied bytes against a rate in bytes per second, which may change at any time.

    ``_owed`` bytes were copied, as of ``_paid_at``, in excess of what the rate permits. ``_paid_rate`` is the rate at
    that time.
    """

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        self._owed = 0.0
        self._paid_at = 0.0
        self._paid_rate = 0

    def took(self, size: int, now: float) -> float:
        """Counts ``size`` copied bytes. Returns the number of seconds to wait before ``wait_s`` is called again."""
        wait_s = self._pay(now)
        self._owed += size
        return min(LONGEST_WAIT_S, wait_s + size / max(1, self._rate()))

    def wait_s(self, now: float) -> float:
        """Returns the number of seconds to wait before this is called again; 0 means that more may be copied now."""
        return min(LONGEST_WAIT_S, self._pay(now))

    def _pay(self, now: float) -> float:
        """Reduces ``_owed`` by what the time since the last call permits. Returns how long the rest takes at the
        current rate."""
        rate = max(1, self._rate())
        # When the rate changed is not known. The lower of the two keeps a raised rate from counting for time before it.
        self._owed = max(0.0, self._owed - (now - self._paid_at) * min(rate, self._paid_rate))
        self._paid_at, self._paid_rate = now, rate
        return self._owed / rate
