"""The plan of an offset reset: the new offset of each partition, and plans as CSV files.

A plan is computed from the marks of each partition: the log start and end offsets, the committed offset, and the
offset of a timestamp. Nothing here sends a request, so a dry run and an execution compute the same plan.

The files have the format of kafka-consumer-groups: ``topic,partition,offset`` for one group and
``group,topic,partition,offset`` for several, without a header line.
"""

import csv
import enum
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError

Offsets = dict[TopicPartition, int]


class Target(enum.Enum):
    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    CURRENT = "to-current"
    OFFSET = "to-offset"
    SHIFT = "shift-by"
    TIME = "to-datetime"
    FILE = "from-file"


@dataclass(frozen=True)
class Reset:
    """A destination. ``value`` is the offset, the shift or the timestamp; ``file`` holds the offsets of a CSV file."""

    target: Target
    value: int = 0
    file: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True)
class Marks:
    """The offsets of one partition. ``at_time`` is -1 when all its records are older than the timestamp."""

    earliest: int
    latest: int
    current: int | None = None
    at_time: int = -1


@dataclass(frozen=True)
class Change:
    where: TopicPartition
    old: int | None
    new: int
    warning: str | None = None


def plan(reset: Reset, marks: Mapping[TopicPartition, Marks]) -> list[Change]:
    """Returns the change of each partition, in order.

    An offset outside the log is replaced by the nearest one inside it, with a warning. Raises CommandError for a shift
    of a partition without a committed offset.
    """
    return [_change(reset, where, marks[where]) for where in sorted(marks)]


def _change(reset: Reset, where: TopicPartition, marks: Marks) -> Change:
    match reset.target:
        case Target.EARLIEST:
            return Change(where, marks.current, marks.earliest)
        case Target.LATEST:
            return Change(where, marks.current, marks.latest)
        case Target.CURRENT:
            return Change(where, marks.current, marks.latest if marks.current is None else marks.current)
        case Target.TIME if marks.at_time < 0:
            warning = f"{where} has no record at or after that time; using its log end offset {marks.latest}"
            return Change(where, marks.current, marks.latest, warning)
        case Target.TIME:
            return Change(where, marks.current, marks.at_time)
        case Target.SHIFT if marks.current is None:
            raise CommandError(f"{where} has no committed offset to shift; use another destination than --shift-by")
        case Target.SHIFT:
            return _within(where, marks, (marks.current or 0) + reset.value)
        case Target.FILE:
            return _within(where, marks, (reset.file or {})[where])
        case Target.OFFSET:
            return _within(where, marks, reset.value)


def _within(where: TopicPartition, marks: Marks, wanted: int) -> Change:
    warning = None
    new = min(max(wanted, marks.earliest), marks.latest)
    if wanted > marks.latest:
        warning = f"offset {wanted} is past the end of {where}; using its log end offset {marks.latest}"
    elif wanted < marks.earliest:
        warning = f"offset {wanted} is before the start of {where}; using its log start offset {marks.earliest}"
    return Change(where, marks.current, new, warning)


def parse_plan(text: str, name: str, groups: Iterable[str]) -> dict[str, Offsets]:
    """Returns the offsets in a CSV file by group. Lines without a group are allowed when there is only one group."""
    groups = list(groups)
    plans: dict[str, Offsets] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        if len(row) == 3 and len(groups) == 1:
            row = [groups[0], *row]
        if len(row) != 4 or not all(_is_number(field) for field in row[2:]):
            form = "topic,partition,offset" if len(groups) == 1 else "group,topic,partition,offset"
            raise CommandError(f"{name}, line {number}: expected {form}, found '{','.join(row)}'")
        group, topic, partition, offset = row
        plans.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
    return plans


def _is_number(field: str) -> bool:
    return field.strip().isascii() and field.strip().isdecimal()


def plan_as_csv(offsets: Mapping[str, Mapping[TopicPartition, int]], *, with_group: bool) -> str:
    """Returns the offsets in the format that ``parse_plan`` reads."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for group, of_group in offsets.items():
        for (topic, partition), offset in sorted(of_group.items()):
            writer.writerow([group, topic, partition, offset] if with_group else [topic, partition, offset])
    return written.getvalue()
