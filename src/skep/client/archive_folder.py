"""The folder of an archived topic: what its files are called, and what ``_skep.json`` says about them.

    lake/topic=orders/
        _skep.json              whose records, from which offset to which; files that still have to be moved in
        _skep.lock              held by the run that writes
        _skep.tmp/              files that are no part of the archive yet
        date=2026-01-31/
            0-00000000000000000123-00000000000000000456.parquet     partition, first offset, last offset

A date is the day of the records' timestamps, in UTC. As tables know such folders, topic and date are columns; what
begins with an underscore they pass over.

The records of a partition from ``start`` up to ``end`` are in the files, apart from ``gaps``: offsets that the log had
lost before they were archived. (Offsets that no record has, as after compaction, are no gaps.) The records of one day
lie close together, but a late one is in the file of its own day: files of different days may reach over each other in
offsets, never those of one day.
"""

import dataclasses
import json
import os
import re
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
"""Hive's name for null, for moments that the calendar does not have: years after 9999, by a producer's mistake."""
DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_NAME = re.compile(r"(\d+)-(\d{20})-(\d{20})\.parquet")


class ArchiveError(ClientError):
    """The folder is not (or no longer) what an archive has to be; the message names it and says what to do."""


class ArchiveFile(NamedTuple):
    """The records of one partition and one day, of a run."""

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


@dataclasses.dataclass
class ArchiveState:
    """``unfinished``: files that are part of the archive and may still be in ``_skep.tmp``, by their place in the
    folder. ``settled`` has where the partitions of these files ended before them."""

    topic: str
    topic_id: UUID
    partitions: dict[int, ArchivedPartition]
    unfinished: list[str] = dataclasses.field(default_factory=list)
    settled: dict[int, int] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        document = {
            "format": FORMAT,
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "partitions": {str(one): dataclasses.asdict(part) for one, part in sorted(self.partitions.items())},
            "unfinished": self.unfinished,
            "settled": {str(one): end for one, end in sorted(self.settled.items())},
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> "ArchiveState":
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
            if document["format"] != FORMAT:
                raise ArchiveError(f"{path} is of format {document['format']}, written by a newer skep")
            return cls(
                document["topic"],
                UUID(document["topic_id"]),
                {
                    int(one): ArchivedPartition(part["start"], part["end"], [(a, b) for a, b in part["gaps"]])
                    for one, part in document["partitions"].items()
                },
                document["unfinished"],
                {int(one): end for one, end in document["settled"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(
                f"{path} is damaged ({type(error).__name__}: {error}); put it back from a copy"
            ) from None


def topic_folder(directory: Path, topic: str) -> Path:
    return directory / f"topic={topic}"


def relative_name(partition: int, first: int, last: int, day: int) -> str:
    return f"date={date_of_day(day)}/{partition}-{first:020d}-{last:020d}.parquet"


def temporary_name(relative: str) -> str:
    """Without the ending, for some look for ``**/*.parquet`` and take what they find."""
    return f"{TEMPORARY}/{relative.removesuffix('.parquet').replace('/', '.')}"


def date_of_day(day: int) -> str:
    """Days since 1970 as ``2026-01-31``."""
    return str(_EPOCH + timedelta(days=day)) if FIRST_DAY <= day <= LAST_DAY else NO_DATE


def day_of_ms(timestamp_ms: int) -> int:
    return timestamp_ms * 1000 // DAY_US


class Archive:
    """An archived topic as it is now, for reading. What is archived meanwhile is not part of it."""

    def __init__(self, folder: Path, state: ArchiveState, files: Sequence[ArchiveFile]) -> None:
        self.folder = folder
        self.topic, self.topic_id = state.topic, state.topic_id
        self.partitions: Mapping[int, ArchivedPartition] = state.partitions
        self._files: dict[int, list[ArchiveFile]] = {}
        for one in sorted(files, key=lambda file: (file.first, file.last)):
            self._files.setdefault(one.partition, []).append(one)

    @classmethod
    def open(cls, folder: Path) -> "Archive":
        """The archive in ``lake/topic=orders``. ArchiveError when there is none."""
        try:
            state = ArchiveState.read(folder / STATE)
        except (FileNotFoundError, NotADirectoryError):
            raise ArchiveError(f"{folder} is no archive of a topic: it has no {STATE}") from None
        files = list(list_files(folder))
        if not {str(folder / one) for one in state.unfinished} <= {one.path for one in files}:
            # A run is moving them in, or was killed doing it and the next one will. Until then they do not count.
            for partition, end in state.settled.items():
                state.partitions[partition].end = end
                state.partitions[partition].gaps = [gap for gap in state.partitions[partition].gaps if gap[0] < end]
        ends = {partition: part.end for partition, part in state.partitions.items()}
        return cls(folder, state, [one for one in files if one.first < ends.get(one.partition, 0)])

    def files(self, partition: int, start: int, end: int, from_ms: int | None = None) -> list[ArchiveFile]:
        """Those that can have records of these offsets that are not older, by offset."""
        return [
            one
            for one in self._files.get(partition, ())
            if one.first < end and one.last >= start and not is_before(one, from_ms)
        ]

    def missing(self, partition: int, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range of offsets that were never archived."""
        part = self.partitions.get(partition)
        if part is None or start >= end:
            return [(start, end)] if start < end else []
        outside = [(start, min(end, part.start)), *part.gaps, (max(start, part.end), end)]
        inside = [(max(start, first), min(end, last)) for first, last in outside]
        return [(first, last) for first, last in inside if first < last]


def is_before(file: ArchiveFile, timestamp_ms: int | None) -> bool:
    """Whether all of its records are older, as far as its day tells."""
    return timestamp_ms is not None and file.date != NO_DATE and file.date < date_of_day(day_of_ms(timestamp_ms))


def is_after(file: ArchiveFile, timestamp_ms: int | None) -> bool:
    """Whether all of its records are younger, as far as its day tells."""
    return timestamp_ms is not None and file.date != NO_DATE and file.date > date_of_day(day_of_ms(timestamp_ms))


def find_archives(directory: Path) -> list[Path]:
    """``lake/topic=orders`` and its neighbours, or ``directory`` itself if it is one of these."""
    if (directory / STATE).exists():
        return [directory]
    return sorted(path.parent for path in directory.glob(f"topic=*/{STATE}"))


def list_files(folder: Path) -> Iterator[ArchiveFile]:
    """The files in the folders of days. ArchiveError for one that no run can have written."""
    with os.scandir(folder) as days:
        names = sorted(day.name for day in days if day.name.startswith("date=") and day.is_dir())
    for name in names:
        with os.scandir(folder / name) as entries:
            for entry in entries:
                if entry.name[0] in "._":
                    continue
                found = _NAME.fullmatch(entry.name)
                if found is None:
                    raise ArchiveError(f"{entry.path} is not a file of an archive; move it out of the folder")
                partition, first, last = map(int, found.groups())
                day = name.removeprefix("date=")
                yield ArchiveFile(str(folder / name / entry.name), partition, first, last, day, entry.stat().st_size)
