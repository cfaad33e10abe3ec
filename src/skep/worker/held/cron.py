"""Repeating schedules: ``@every 5m`` and cron lines, and the time at which each fires next.

A cron line has five fields, minute to day of the week, or six with the second in front. ``*``, ``?``, lists, ranges,
steps and the names of months and days are read. As in cron, a line that restricts both the day of the month and the day
of the week fires on days that match either.

A cron line uses the local time of its zone. When the local clock is set forward, a skipped time fires later by the
skipped time (2:30 at 3:30), unless the line fires in every hour. When the clock is set back, a time that occurs twice
fires the first time only, unless the line fires in every hour.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

SHORTEST_INTERVAL_MS, LONGEST_INTERVAL_MS = 1000, 3660 * 86_400_000
LONGEST_SEARCH_DAYS = 9 * 366
"""A line that fires on no day of nine years never fires: February 29 comes after eight years at the latest."""
_EPOCH = datetime(1970, 1, 1)
_LAST_YEAR = 9900
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|s|m|h|d))+")
_PART = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTH_NAMES = "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"
_MONTHS = {name: at for at, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {name: at for at, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}


class ScheduleError(ValueError):
    """A schedule that cannot be read or never fires; the message says why."""


class Schedule(Protocol):
    @property
    def firings_per_second(self) -> float:
        """How often it fires, on the average of a day on which it does."""

    def next_after(self, moment_ms: int) -> int:
        """Returns the first firing after the moment. Raises ScheduleError if there is none."""

    def last_until(self, fired_ms: int, now_ms: int) -> int:
        """Returns from which moment on the next firing counts, when the one of ``fired_ms`` was carried out now.

        Firings that were missed are not made up for.
        """


def read_schedule(text: str, zone: str | None) -> Schedule:
    """Raises ScheduleError. ``zone`` is a name like Europe/Berlin, UTC if None."""
    text = text.strip()
    if text.startswith("@every"):
        if zone is not None:
            raise ScheduleError("@every has no zone")
        return Every(_interval_ms(text.removeprefix("@every").strip()))
    try:
        info = ZoneInfo(zone if zone is not None else "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError(f"there is no zone {zone!r}") from None
    return Cron(_fields(_MACROS.get(text.lower(), text)), info)


def _interval_ms(text: str) -> int:
    if not _DURATION.fullmatch(text):
        raise ScheduleError(f"@every needs a time like 5m or 1h30m, not {text!r}")
    interval_ms = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if not SHORTEST_INTERVAL_MS <= interval_ms <= LONGEST_INTERVAL_MS:
        raise ScheduleError(f"@every {text}: the time must be from 1 s to {LONGEST_INTERVAL_MS // 86_400_000} d")
    return interval_ms


@dataclass(frozen=True)
class Every:
    """Fires each ``interval_ms`` after the moment that it began."""

    interval_ms: int

    @property
    def firings_per_second(self) -> float:
        return 1000 / self.interval_ms

    def next_after(self, moment_ms: int) -> int:
        return moment_ms + self.interval_ms

    def last_until(self, fired_ms: int, now_ms: int) -> int:
        return fired_ms + max(0, now_ms - fired_ms) // self.interval_ms * self.interval_ms


@dataclass(frozen=True)
class Fields:
    """The values that match. ``days`` and ``weekdays`` (Sunday is 0) are None where every day does."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int] | None
    months: frozenset[int]
    weekdays: frozenset[int] | None

    @property
    def is_every_hour(self) -> bool:
        return len(self.hours) == 24

    def matches_day(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        in_month = self.days is not None and day.day in self.days
        in_week = self.weekdays is not None and day.isoweekday() % 7 in self.weekdays
        if self.days is None or self.weekdays is None:
            return (self.days is None or in_month) and (self.weekdays is None or in_week)
        return in_month or in_week

    def next_from(self, wall: datetime) -> datetime | None:
        """Returns the first matching time of the wall clock, ``wall`` itself included; None if none comes."""
        day = wall.replace(hour=0, minute=0, second=0)
        time_of_day: tuple[int, int, int] | None = (wall.hour, wall.minute, wall.second)
        for _ in range(LONGEST_SEARCH_DAYS):
            if day.year > _LAST_YEAR:
                return None
            if self.matches_day(day) and (found := self._next_time(time_of_day)) is not None:
                return day.replace(hour=found[0], minute=found[1], second=found[2])
            day += _DAY
            time_of_day = None
        return None

    def _next_time(self, start: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
        """Returns the first matching time of a day from ``start`` on; None if the day has none left."""
        first = self.hours[0], self.minutes[0], self.seconds[0]
        if start is None or start <= first:
            return first
        hour, minute, second = start
        if hour in self.hours:
            if minute in self.minutes and (at := bisect_left(self.seconds, second)) < len(self.seconds):
                return hour, minute, self.seconds[at]
            if (at := bisect_left(self.minutes, minute + 1)) < len(self.minutes):
                return hour, self.minutes[at], self.seconds[0]
        if (at := bisect_left(self.hours, hour + 1)) < len(self.hours):
            return self.hours[at], self.minutes[0], self.seconds[0]
        return None


@dataclass(frozen=True)
class Cron:
    fields: Fields
    zone: ZoneInfo

    @property
    def firings_per_second(self) -> float:
        fields = self.fields
        return len(fields.seconds) * len(fields.minutes) * len(fields.hours) / 86_400

    def last_until(self, fired_ms: int, now_ms: int) -> int:
        return max(fired_ms, now_ms)

    def next_after(self, moment_ms: int) -> int:
        """Walks from one change of the zone's clock to the next; between two of them, wall and time run alike."""
        try:
            # The first full second after the moment.
            start = (_EPOCH + timedelta(milliseconds=moment_ms)).replace(microsecond=0) + _SECOND
            offset, passed = self._offset(start), _EPOCH
            while (wall := self.fields.next_from(max(passed, start + offset))) is not None:
                moment = wall - offset
                if moment - start > _DAY:
                    # Far away: from a day before it on, with the offset of that time.
                    start = moment - _DAY
                    offset = self._offset(start)
                elif self._offset(moment) != offset:
                    start = self._change(start, moment, offset)
                    offset = self._offset(start)
                    if wall < start + offset and not self.fields.is_every_hour:
                        return _ms(moment)  # the wall clock has skipped it
                elif self.fields.is_every_hour or not self._comes_again(moment):
                    return _ms(moment)
                else:
                    passed = wall + _SECOND
        except OverflowError:
            pass
        raise ScheduleError("the cron line never fires")

    def _comes_again(self, moment: datetime) -> bool:
        """Whether the wall clock has shown the same time before, because it was set back."""
        return moment.replace(tzinfo=UTC).astimezone(self.zone).fold == 1

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.replace(tzinfo=UTC).astimezone(self.zone).utcoffset()
        assert offset is not None
        return offset

    def _change(self, low: datetime, high: datetime, offset: timedelta) -> datetime:
        """Returns the first second after ``low`` at which the offset is another; it is at ``high``."""
        low_s, high_s = int((low - _EPOCH).total_seconds()), int((high - _EPOCH).total_seconds())
        while high_s - low_s > 1:
            middle = (low_s + high_s) // 2
            if self._offset(_EPOCH + timedelta(seconds=middle)) == offset:
                low_s = middle
            else:
                high_s = middle
        return _EPOCH + timedelta(seconds=high_s)


def _ms(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds()) * 1000


def _fields(line: str) -> Fields:
    parts = line.lower().split()
    if len(parts) not in (5, 6):
        raise ScheduleError(f"a cron line has 5 or 6 fields, {line!r} has {len(parts)}")
    if len(parts) == 5:
        parts.insert(0, "0")
    second, minute, hour, day, month, weekday = parts
    weekdays = _values(weekday, "day of the week", 0, 7, _WEEKDAYS)
    return Fields(
        tuple(sorted(_values(second, "second", 0, 59))),
        tuple(sorted(_values(minute, "minute", 0, 59))),
        tuple(sorted(_values(hour, "hour", 0, 23))),
        None if day in ("*", "?") else frozenset(_values(day, "day of the month", 1, 31)),
        frozenset(_values(month, "month", 1, 12, _MONTHS)),
        None if weekday in ("*", "?") else frozenset(value % 7 for value in weekdays),
    )


def _values(field: str, what: str, low: int, high: int, names: dict[str, int] | None = None) -> set[int]:
    values: set[int] = set()
    for part in field.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, what, 1, high) if slash else 1
        if span in ("*", "?"):
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, what, low, high, names)
            last = _number(end, what, low, high, names) if dash else (high if slash else first)
        if last < first:
            raise ScheduleError(f"the {what} {part!r} ends before it begins")
        values.update(range(first, last + 1, step))
    return values


def _number(text: str, what: str, low: int, high: int, names: dict[str, int] | None = None) -> int:
    if names is not None and text in names:
        return names[text]
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and low <= int(text) <= high):
        raise ScheduleError(f"the {what} {text!r} is not from {low} to {high}")
    return int(text)
