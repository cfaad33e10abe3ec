"""The folder of an archived topic: the names of its files, and the state in ``_skep.json``.

    lake/topic=orders/
        _skep.json              the topic, the range of offsets, the number of files of each day; files that still
                                have to be moved in
        _skep.lock              held by the run that writes
        _skep.tmp/              files that are not part of the archive yet
        date=2026-01-31/
            0-00000000000000000123-00000000000000000456.parquet     partition, first offset, last offset

A date is the day of the records' timestamps, in UTC. Readers of Hive folders show topic and date as columns, and skip
names that begin with an underscore.

The files have the records of a partition from ``start`` up to ``end``, apart from ``gaps``: offsets that the log had
deleted before they were archived. (Offsets without a record, as after compaction, are no gaps.) A late record is in the
file of its own day: files of different days may overlap in offsets, files of one day never do.

A run records every partition that it sees, also those without records. So a partition that is not recorded was added
later, and its archive begins at 0; only the first run begins at the log start offset. The files are counted by day and
partition, not listed: enough to notice a missing one, and the state stays small however many there are.
"""

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from skep.client.errors import ClientError

STATE = "_skep.json"
LOCK = "_skep.lock"
TEMPORARY = "_skep.tmp"
FORMAT = 1
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for null, for timestamps outside the calendar: years after 9999, by a producer's mistake."""
DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_NAME = re.compile(r"(\d+)-(\d{20})-(\d{20})\.parquet")


class ArchiveError(ClientError):
    """The folder is not a valid archive; the message names it and says what to do."""


class ArchiveFile(NamedTuple):
    """A file with the records of one partition and one day, written by one run."""

    path: str
    partition: int
    first: int
    last: int
    date: str
    size: int


@dataclasses.dataclass
class ArchivedPartition:
    start: int
    end: int
    gaps: list[tuple[int, int]] = dataclasses.field(default_factory=list)


class FileCount(NamedTuple):
    """The number of files of a partition and a day, and the first and last offset in them."""

    files: int
    first: int
    last: int


class LostFiles(NamedTuple):
    """Files of a day and a partition that were archived and are missing now."""

    folder: Path
    partition: int
    there: int
    counted: FileCount

    def __str__(self) -> str:
        files, first, last = self.counted
        return (
            f"{self.folder} has {self.there} of the {files} files that were archived of partition {self.partition} "
            f"(between offsets {first} and {last})"
        )


@dataclasses.dataclass
class ArchiveState:
    """The content of ``_skep.json``.

    ``counts`` has the number of files by date and partition, ``unfinished`` ones included. Those are part of the
    archive and may still be in ``_skep.tmp``; they are named by their path in the folder. ``settled`` has the ends of
    their partitions without them.
    """

    topic: str
    topic_id: UUID
    partitions: dict[int, ArchivedPartition]
    counts: dict[tuple[str, int], FileCount] = dataclasses.field(default_factory=dict)
    unfinished: list[str] = dataclasses.field(default_factory=list)
    settled: dict[int, int] = dataclasses.field(default_factory=dict)

    def count(self, name: str) -> None:
        """Counts a file that becomes part of the archive, by its path in the folder."""
        day, partition, first, last = parse_name(name)
        before = self.counts.get((day, partition), FileCount(0, first, last))
        self.counts[day, partition] = FileCount(before.files + 1, min(before.first, first), max(before.last, last))

    def to_json(self) -> str:
        files: dict[str, dict[str, FileCount]] = {}
        for (day, partition), count in sorted(self.counts.items()):
            files.setdefault(day, {})[str(partition)] = count
        document = {
            "format": FORMAT,
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "partitions": {str(one): dataclasses.asdict(part) for one, part in sorted(self.partitions.items())},
            "files": files,
            "unfinished": self.unfinished,
            "settled": {str(one): end for one, end in sorted(self.settled.items())},
        }
        return "{\n" + ",\n".join(f' "{name}": {json.dumps(value)}' for name, value in document.items()) + "\n}\n"

    @classmethod
    def read(cls, path: Path) -> "ArchiveState":
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
            if document["format"] != FORMAT:
                raise ArchiveError(f"{path} has format {document['format']}, written by a newer Skep: upgrade")
            state = cls(
                document["topic"],
                UUID(document["topic_id"]),
                {
                    int(one): ArchivedPartition(part["start"], part["end"], [(a, b) for a, b in part["gaps"]])
                    for one, part in document["partitions"].items()
                },
                {
                    (day, int(one)): FileCount(*count)
                    for day, counts in document["files"].items()
                    for one, count in counts.items()
                },
                document["unfinished"],
                {int(one): end for one, end in document["settled"].items()},
            )
            for name in state.unfinished:
                state.counts[parse_name(name)[:2]]
            return state
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(f"{path} is damaged ({type(error).__name__}: {error}); restore it from a copy") from None


def topic_folder(directory: Path, topic: str) -> Path:
    return directory / f"topic={topic}"


def relative_name(partition: int, first: int, last: int, day: int) -> str:
    return f"date={date_of_day(day)}/{partition}-{first:020d}-{last:020d}.parquet"


def parse_name(relative: str) -> tuple[str, int, int, int]:
    """Returns date, partition, first and last offset. Raises ValueError for another name."""
    day, _, name = relative.partition("/")
    found = _NAME.fullmatch(name)
    if found is None or not day.startswith("date="):
        raise ValueError(f"{relative} is not the name of a file of an archive")
    partition, first, last = map(int, found.groups())
    return day.removeprefix("date="), partition, first, last


def temporary_name(relative: str) -> str:
    """Returns a name without the suffix, because some readers take every ``**/*.parquet``."""
    return f"{TEMPORARY}/{relative.removesuffix('.parquet').replace('/', '.')}"


def date_of_day(day: int) -> str:
    """Returns days since 1970 as ``2026-01-31``."""
    return str(_EPOCH + timedelta(days=day)) if FIRST_DAY <= day <= LAST_DAY else NO_DATE


def day_of_ms(timestamp_ms: int) -> int:
    return timestamp_ms * 1000 // DAY_US


class Archive:
    """A snapshot of an archived topic, for reading. Later runs do not change it."""

    def __init__(self, folder: Path, state: ArchiveState, files: Sequence[ArchiveFile]) -> None:
        self.folder = folder
        self.topic, self.topic_id = state.topic, state.topic_id
        self.partitions: Mapping[int, ArchivedPartition] = state.partitions
        self._files: dict[int, list[ArchiveFile]] = {}
        for one in sorted(files, key=lambda file: (file.first, file.last)):
            self._files.setdefault(one.partition, []).append(one)
        there = Counter((one.date, one.partition) for one in files)
        self._lost = [
            (day, LostFiles(folder / f"date={day}", partition, there[day, partition], count))
            for (day, partition), count in sorted(state.counts.items())
            if there[day, partition] < count.files
        ]

    @classmethod
    def open(cls, folder: Path) -> "Archive":
        """Opens the archive in ``lake/topic=orders``. Raises ArchiveError when there is none."""
        try:
            state = ArchiveState.read(folder / STATE)
        except (FileNotFoundError, NotADirectoryError):
            raise ArchiveError(f"{folder} is no archive of a topic: it has no {STATE}") from None
        files = list(list_files(folder))
        if not {str(folder / one) for one in state.unfinished} <= {one.path for one in files}:
            # A run is moving them in, or was killed meanwhile and the next one will. Until then they do not count.
            for partition, end in state.settled.items():
                state.partitions[partition].end = end
                state.partitions[partition].gaps = [gap for gap in state.partitions[partition].gaps if gap[0] < end]
            for name in state.unfinished:
                day, partition, _, _ = parse_name(name)
                count = state.counts[day, partition]
                state.counts[day, partition] = count._replace(files=count.files - 1)
        ends = {partition: part.end for partition, part in state.partitions.items()}
        return cls(folder, state, [one for one in files if one.first < ends.get(one.partition, 0)])

    def files(self, partition: int, start: int, end: int, from_ms: int | None = None) -> list[ArchiveFile]:
        """Returns the files that can have records of these offsets and not older than ``from_ms``, by offset."""
        return [
            one
            for one in self._files.get(partition, ())
            if one.first < end and one.last >= start and not is_before(one.date, from_ms)
        ]

    def lost(
        self, partition: int, start: int, end: int, from_ms: int | None = None, until_ms: int | None = None
    ) -> list[LostFiles]:
        """Returns the missing files that can have had records of these offsets and times."""
        return [
            one
            for day, one in self._lost
            if one.partition == partition
            and one.counted.first < end
            and one.counted.last >= start
            and not is_before(day, from_ms)
            and not is_after(day, until_ms)
        ]

    def missing(self, partition: int, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the parts of a range of offsets that were never archived."""
        part = self.partitions.get(partition)
        if part is None or start >= end:
            return [(start, end)] if start < end else []
        outside = [(start, min(end, part.start)), *part.gaps, (max(start, part.end), end)]
        inside = [(max(start, first), min(end, last)) for first, last in outside]
        return [(first, last) for first, last in inside if first < last]


def is_before(day: str, timestamp_ms: int | None) -> bool:
    """Returns whether all records of the date are older."""
    return timestamp_ms is not None and day != NO_DATE and day < date_of_day(day_of_ms(timestamp_ms))


def is_after(day: str, timestamp_ms: int | None) -> bool:
    """Returns whether all records of the date are younger."""
    return timestamp_ms is not None and day != NO_DATE and day > date_of_day(day_of_ms(timestamp_ms))


def find_archives(directory: Path) -> list[Path]:
    """Returns ``lake/topic=orders`` and its neighbours, or ``directory`` itself if it is an archive."""
    if (directory / STATE).exists():
        return [directory]
    return sorted(path.parent for path in directory.glob(f"topic=*/{STATE}"))


def list_files(folder: Path) -> Iterator[ArchiveFile]:
    """Yields the files in the folders of days. Raises ArchiveError for a file that no run can have written."""
    with os.scandir(folder) as days:
        names = sorted(day.name for day in days if day.name.startswith("date=") and day.is_dir())
    for name in names:
        with os.scandir(folder / name) as entries:
            for entry in entries:
                if entry.name[0] in "._":
                    continue
                try:
                    day, partition, first, last = parse_name(f"{name}/{entry.name}")
                except ValueError:
                    raise ArchiveError(f"{entry.path} is not a file of an archive; move it out of the folder") from None
                yield ArchiveFile(str(folder / name / entry.name), partition, first, last, day, entry.stat().st_size)
