"""A limit for log lines that strangers cause: a scan of ports, or wrong passwords, must not fill the disk."""

import logging

from skep.base.clock import Clock

LINES, PER_S = 100, 10.0


class LogLimit:
    """Logs at most ``lines`` lines in ``per_s`` seconds. The next period begins with the number of those left out."""

    def __init__(self, clock: Clock, lines: int = LINES, per_s: float = PER_S) -> None:
        self._clock = clock
        self._lines = lines
        self._per_s = per_s
        self._since = float("-inf")
        self._logged = self._left_out = 0

    def warning(self, logger: logging.Logger, message: str, *values: object) -> None:
        now = self._clock.monotonic()
        if now - self._since >= self._per_s:
            self._since, self._logged = now, 0
            if self._left_out:
                logger.warning("%d more lines like the next one were left out", self._left_out)
                self._left_out = 0
        if self._logged >= self._lines:
            self._left_out += 1
            return
        self._logged += 1
        logger.warning(message, *values)
