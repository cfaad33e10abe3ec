"""How long a record waits after a failed delivery: ``skep.share.retry.backoff``.

Either the steps, of which the last one repeats (``1s,5s,30s,2m,10m``), or a first delay that grows by a factor up to a
longest one (``exp:1s:2:10m``).
"""

import functools
import re
from typing import NamedTuple

LONGEST_DELAY_MS = 31 * 24 * 3_600_000
MOST_STEPS = 32

_EXPONENTIAL = "exp:"
_DURATION = re.compile(r"(\d{1,10})(ms|s|m|h|d)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FACTOR = re.compile(r"\d{1,3}(\.\d{1,3})?", re.ASCII)


class RetryBackoff(NamedTuple):
    """The delays after the first failures. After more of them, the last delay repeats."""

    steps_ms: tuple[int, ...]

    def delay_ms(self, failures: int) -> int:
        """Returns the delay after so many failures, at least one."""
        return self.steps_ms[min(max(failures, 1), len(self.steps_ms)) - 1]


@functools.lru_cache(maxsize=1_000)
def retry_backoff(text: str) -> RetryBackoff | None:
    """Returns the delays, or None for the empty text. Raises ValueError with what is wrong."""
    if not text:
        return None
    if text.startswith(_EXPONENTIAL):
        return _exponential(text.removeprefix(_EXPONENTIAL))
    steps = tuple(_duration_ms(step.strip()) for step in text.split(","))
    if len(steps) > MOST_STEPS:
        raise ValueError(f"has {len(steps)} steps, more than {MOST_STEPS}")
    return RetryBackoff(steps)


def _exponential(text: str) -> RetryBackoff:
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError("must have the form exp:first:factor:longest, e.g. exp:1s:2:10m")
    first_ms, longest_ms = _duration_ms(parts[0]), _duration_ms(parts[2])
    factor = float(parts[1]) if _FACTOR.fullmatch(parts[1]) else 0.0
    if not 1 <= factor <= 100:
        raise ValueError(f"the factor {parts[1]} must be a number from 1 to 100")
    if longest_ms < first_ms:
        raise ValueError(f"the longest delay, {parts[2]}, is shorter than the first, {parts[0]}")
    steps: list[int] = []
    delay: float = first_ms
    while len(steps) < MOST_STEPS and (not steps or steps[-1] < longest_ms):
        steps.append(min(longest_ms, round(delay)))
        delay *= factor
    return RetryBackoff(tuple(steps))


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 2m, 1h or 1d")
    duration_ms = int(found[1]) * _UNIT_MS[found[2]]
    if not 1 <= duration_ms <= LONGEST_DELAY_MS:
        raise ValueError(f"{text} must be between 1ms and 31d")
    return duration_ms
