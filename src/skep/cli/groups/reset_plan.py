"""What a group's offsets become when they are reset: pure functions from marks to a plan, and plans as CSV files.

A plan is made from the marks of each partition: where its log begins and ends, what the group has committed, and what
offset a moment falls on. Nothing here asks a cluster, so a dry run and the real one cannot differ.

The files are those of kafka-consumer-groups: ``topic,partition,offset`` for one group and
``group,topic,partition,offset`` for several, without a heading.
"""

import csv
import enum
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError, UsageError

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
    """Where offsets are set to. ``value``: the offset, the shift or the moment in milliseconds; ``file``: the plan of
    each partition that a file names."""

    target: Target
    value: int = 0
    file: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True)
class Marks:
    """What is known about one partition. ``at_time`` is -1 when all its records are older."""

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
    """What becomes of each partition, in order. An offset that the partition does not have is replaced by the nearest
    one, with a warning; a shift of a partition without a committed offset is a CommandError."""
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
            warning = f"{where} has no record at or after that time: its end is taken, {marks.latest}"
            return Change(where, marks.current, marks.latest, warning)
        case Target.TIME:
            return Change(where, marks.current, marks.at_time)
        case Target.SHIFT if marks.current is None:
            raise CommandError(f"{where} has no committed offset that could be shifted")
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
        warning = f"{where} does not reach offset {wanted}: its end is taken, {marks.latest}"
    elif wanted < marks.earliest:
        warning = f"{where} has no offset {wanted}: its beginning is taken, {marks.earliest}"
    return Change(where, marks.current, new, warning)


def parse_scope(text: str) -> tuple[str, list[int] | None]:
    """``orders`` or ``orders:0,2``: a topic and its partitions, None for all of them."""
    topic, colon, partitions = text.partition(":")
    if not topic:
        raise UsageError(f"'{text}' names no topic")
    if not colon:
        return topic, None
    numbers = [part.strip() for part in partitions.split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise UsageError(f"'{text}' is not a topic with partitions like orders:0,2")
    return topic, sorted({int(number) for number in numbers})


def parse_plan(text: str, name: str, groups: Iterable[str]) -> dict[str, Offsets]:
    """The offsets by group that a CSV file holds; lines without a group belong to the one group there is."""
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
    """What ``parse_plan`` reads."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for group, of_group in offsets.items():
        for (topic, partition), offset in sorted(of_group.items()):
            writer.writerow([group, topic, partition, offset] if with_group else [topic, partition, offset])
    return written.getvalue()
