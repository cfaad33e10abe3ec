"""A limit for log lines that strangers cause: a scan of ports, or wrong passwords, must not fill the disk."""

import logging

from skep.base.clock import Clock

PERIOD_S = 10.0
SAME_REASON, REASONS = 10, 100
"""Lines in a period: so many with the same reason, and so many reasons."""


class LogLimit:
    """Logs why clients were refused. A period begins with the number of lines that were left out of the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = float("-inf")
        self._logged: dict[str, int] = {}
        self._left_out = 0

    def warning(self, logger: logging.Logger, message: str, peer: str, reason: str) -> None:
        """``message`` has a place for each of the other two."""
        now = self._clock.monotonic()
        if now - self._since >= PERIOD_S:
            self._since = now
            self._logged.clear()
            if self._left_out:
                logger.warning("%d more clients were refused for reasons as these", self._left_out)
                self._left_out = 0
        count = self._logged.get(reason, 0)
        if count >= SAME_REASON or (not count and len(self._logged) >= REASONS):
            self._left_out += 1
            return
        self._logged[reason] = count + 1
        logger.warning(message, peer, reason)
