"""Filters that Spark pushes down to a batch read, as conditions on partitions and offsets.

    topic, partition   decide whether a partition is read at all; Spark need not check the rows again
    offset             bounds the range that is read; Spark need not check the rows again
    timestamp          a lower bound only, by the broker's time index: all records before the first one at or after the
                       bound are older. Timestamps in a log are not ordered, so Spark still checks each row, and an
                       upper bound saves nothing, except in archives, whose files hold one day each

Filters that are not understood are left to Spark. A filter never excludes more than it says.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_TYPES: dict[str, type] = {"topic": str, "partition": int}
_TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda have, want: bool(have == want),
    EqualNullSafe: lambda have, want: bool(have == want),
    GreaterThan: lambda have, want: bool(have > want),
    GreaterThanOrEqual: lambda have, want: bool(have >= want),
    LessThan: lambda have, want: bool(have < want),
    LessThanOrEqual: lambda have, want: bool(have <= want),
    In: lambda have, want: have in want,
    StringStartsWith: lambda have, want: bool(have.startswith(want)),
    StringEndsWith: lambda have, want: bool(have.endswith(want)),
    StringContains: lambda have, want: want in have,
}


@dataclasses.dataclass
class Pushed:
    """The conditions taken from the filters. Filters are joined by AND, so each one narrows the read."""

    conditions: list[Filter] = dataclasses.field(default_factory=list)
    start: int = 0
    end: int | None = None
    from_timestamp_ms: int | None = None
    until_timestamp_ms: int | None = None
    """The last millisecond that can match. Only archives use it: their files hold the records of one day each."""

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Takes what it can of the filters. Returns those that Spark still has to check."""
        return [one for one in filters if not self._take(one)]

    def reads(self, topic: str, partition: int) -> bool:
        values = {"topic": topic, "partition": partition}
        return all(_holds(one, values) for one in self.conditions)

    def narrow(self, start: int, end: int) -> tuple[int, int]:
        """Returns the part of a range that can match. An empty part ends at its start."""
        start = max(start, self.start)
        end = end if self.end is None else min(end, self.end)
        return start, max(start, end)

    def _take(self, one: Filter) -> bool:
        column = _column(one)
        if isinstance(one, IsNotNull):
            return column in _NEVER_NULL
        if column in _TYPES and _is_understood(one, _TYPES[column]):
            self.conditions.append(one)
            return True
        if column == "offset":
            return self._take_offset(one)
        if column == "timestamp":
            self._take_timestamp(one)
        return False

    def _take_offset(self, one: Filter) -> bool:
        value: Any = getattr(one, "value", None)
        if isinstance(one, In) and one.value and all(_is(int, entry) for entry in one.value):
            self._bound(min(one.value), max(one.value) + 1)
            return set(one.value) == set(range(min(one.value), max(one.value) + 1))
        if not _is(int, value):
            return False
        if isinstance(one, EqualTo | EqualNullSafe):
            self._bound(value, value + 1)
        elif isinstance(one, GreaterThan):
            self._bound(value + 1, None)
        elif isinstance(one, GreaterThanOrEqual):
            self._bound(value, None)
        elif isinstance(one, LessThan):
            self._bound(0, value)
        elif isinstance(one, LessThanOrEqual):
            self._bound(0, value + 1)
        else:
            return False
        return True

    def _bound(self, start: int, end: int | None) -> None:
        self.start = max(self.start, start)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)

    def _take_timestamp(self, one: Filter) -> None:
        values = one.value if isinstance(one, In) else (getattr(one, "value", None),)
        if not values or not all(isinstance(value, datetime.datetime) and value.tzinfo for value in values):
            return
        if isinstance(one, In | EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
            until_ms = (max(values) - _EPOCH) // _MICROSECOND // 1000
            before = self.until_timestamp_ms
            self.until_timestamp_ms = until_ms if before is None else min(before, until_ms)
        if isinstance(one, In | EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            # Rounded up: timestamps are whole milliseconds, so no record lies between. For `>` this keeps one
            # millisecond too many, and Spark filters it.
            timestamp_ms = -((_EPOCH - min(values)) // _MICROSECOND // 1000)
            if timestamp_ms >= 0:  # brokers cannot look up earlier times, and records without a timestamp have -1
                self.from_timestamp_ms = max(self.from_timestamp_ms or 0, timestamp_ms)


def _column(one: Filter) -> str:
    attribute: tuple[str, ...] = getattr(one.child if isinstance(one, Not) else one, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_understood(one: Filter, kind: type) -> bool:
    if isinstance(one, Not):
        return not isinstance(one.child, Not) and _is_understood(one.child, kind)
    if type(one) not in _TESTS:
        return False
    value: Any = getattr(one, "value", None)
    # With a null among its values, IN is never false. Spark handles that case.
    return all(_is(kind, entry) for entry in value) if isinstance(one, In) else _is(kind, value)


def _holds(one: Filter, values: dict[str, Any]) -> bool:
    if isinstance(one, Not):
        return not _holds(one.child, values)
    return _TESTS[type(one)](values[_column(one)], getattr(one, "value", None))
