"""How fast replicas may catch up, so that what their broker already serves does not suffer."""

from collections.abc import Callable

LONGEST_WAIT_S = 1.0
"""Then it is asked again: by then somebody may have found that it takes too long, and raised the rate."""


class Throttle:
    """Counts what was copied against a rate in bytes a second, which may change at any time.

    ``_owed`` bytes were copied, as of ``_paid_at``, that the rate had not allowed yet.
    """

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        self._owed = 0.0
        self._paid_at = 0.0

    def took(self, size: int, now: float) -> float:
        """So many bytes came; how many seconds to wait before ``wait_s`` is to be asked whether more may come."""
        wait_s = self._pay(now)
        self._owed += size
        return min(LONGEST_WAIT_S, wait_s + size / max(1, self._rate()))

    def wait_s(self, now: float) -> float:
        """How many seconds to wait before this is asked again; 0: more may come."""
        return min(LONGEST_WAIT_S, self._pay(now))

    def _pay(self, now: float) -> float:
        """What the time since the last call has paid for is owed no more; how long the rest takes at this rate."""
        rate = max(1, self._rate())
        self._owed = max(0.0, self._owed - (now - self._paid_at) * rate)
        self._paid_at = now
        return self._owed / rate
