"""Times and durations on the command line: a date, milliseconds since 1970, or a duration ago."""

import re
from datetime import datetime

from skep.base.clock import Clock
from skep.base.iso_duration import iso_duration_ms
from skep.cli.failures import UsageError

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdw]))+")
_STEP = re.compile(r"(\d+)(ms|[smhdw])")


def parse_moment(text: str, clock: Clock) -> int:
    """Returns milliseconds since 1970 for ``2024-05-01T12:00:00Z``, ``1714564800000``, ``-1h30m`` or ``now``.

    A date without a time zone is in the local time zone.
    """
    text = text.strip()
    if text == "now":
        return clock.now_ms()
    if text.isascii() and text.isdecimal():
        return int(text)
    if text.startswith("-") and _DURATION.fullmatch(text[1:]):
        return clock.now_ms() - _sum_of_steps(text[1:])
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"'{text}' is not a time; expected 2024-05-01T12:00:00Z, milliseconds since 1970, or a time ago like -1h30m"
        ) from None


def parse_duration_ms(text: str) -> int:
    """Parses ``1h30m``, or an ISO 8601 duration as Kafka's tools take it: ``PT1H30M``, ``P2DT0.5S``."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        return _sum_of_steps(text)
    if (milliseconds := iso_duration_ms(text)) is not None:
        return milliseconds
    raise UsageError(f"'{text}' is not a duration; expected one like 1h30m, 10d or PT1H30M")


def _sum_of_steps(text: str) -> int:
    return sum(int(number) * _UNIT_MS[unit] for number, unit in _STEP.findall(text))


def shown_moment(timestamp_ms: int) -> str:
    """Returns the time in the local time zone, or the number itself if it is outside the calendar."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}"
