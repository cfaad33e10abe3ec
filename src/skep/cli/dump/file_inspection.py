"""Reading and checking the files of a partition: the batches of a log and the entries of its indexes.

It shares no code with ``storage/``, which writes the files, so that a bug there is not repeated here.

An index entry is wrong if a lookup through it would miss records:

- offset index: the entry must point to the start of a batch whose base offset is not greater than the entry's offset,
  because a search for that offset scans forward from there;
- time index: the entry's timestamp must be the largest of all batches up to its offset, because a search for a later
  time skips them.
"""

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from skep.records.batch import HEADER_SIZE, BatchHeader, crc_of, read_header

CHECKPOINT = "leader-epoch-checkpoint"
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_CHUNK = 1 << 20


class Damage(NamedTuple):
    file: Path
    position: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.problem}"


class InspectedBatch(NamedTuple):
    position: int
    header: BatchHeader
    data: bytes
    problem: str | None
    """The damage of a batch whose length is valid, so that reading can continue behind it."""


class IndexEntry(NamedTuple):
    """``value`` is a position in the log, or a timestamp."""

    at: int
    offset: int
    value: int


def base_offset_of(path: Path) -> int:
    """Returns the base offset in a segment's file name. Raises ValueError for another name."""
    if not path.stem.isdecimal():
        raise ValueError(f"{path.name} has no offset as its name; expected one like 00000000000000000042{path.suffix}")
    return int(path.stem)


def read_log(path: Path) -> Iterator[InspectedBatch | Damage]:
    """Yields the batches of a segment in order. Ends with a Damage if the next batch cannot be found."""
    previous_last = base_offset_of(path) - 1
    size = path.stat().st_size
    position = 0
    with path.open("rb") as log:
        while position < size:
            front = log.read(HEADER_SIZE)
            if len(front) < HEADER_SIZE:
                yield Damage(path, position, f"incomplete batch: {len(front)} of the {HEADER_SIZE} bytes of its header")
                return
            header = read_header(front)
            if header.magic != 2 or header.size < HEADER_SIZE:
                yield Damage(path, position, _not_a_batch(header, front, size - position))
                return
            data = front + log.read(header.size - HEADER_SIZE)
            if len(data) < header.size:
                yield Damage(path, position, f"incomplete batch: {len(data)} of its {header.size} bytes")
                return
            yield InspectedBatch(position, header, data, _problem(header, data, previous_last))
            previous_last = max(previous_last, header.last_offset)
            position += header.size


def _not_a_batch(header: BatchHeader, front: bytes, left: int) -> str:
    if not any(front):
        return f"zeros instead of a batch, {left} bytes before the end of the file"
    return f"not a batch (magic {header.magic}, length {header.batch_length}); the last {left} bytes cannot be read"


def _problem(header: BatchHeader, data: bytes, previous_last: int) -> str | None:
    if (crc := crc_of(data)) != header.crc:
        return f"CRC32C is {crc:08x}, but the header has {header.crc:08x}"
    if header.base_offset <= previous_last:
        return f"offset {header.base_offset} follows offset {previous_last}"
    if header.last_offset_delta < 0 or header.records_count > header.last_offset_delta + 1:
        return f"{header.records_count} records in {header.last_offset_delta + 1} offsets"
    return None


def read_entries(path: Path) -> tuple[list[IndexEntry], list[Damage]]:
    """Returns the entries of an ``.index`` or ``.timeindex`` file and the damage of its format."""
    entry = _OFFSET_ENTRY if path.suffix == ".index" else _TIME_ENTRY
    base_offset = base_offset_of(path)
    data = path.read_bytes()
    damages = []
    if torn := len(data) % entry.size:
        damages.append(Damage(path, len(data) - torn, f"incomplete entry: {torn} of its {entry.size} bytes"))
    # Kafka preallocates 10 MiB for the index of the active segment; the unused part is zeros.
    used = len(data) - torn
    while used and not any(data[max(0, used - _CHUNK) : used]):
        used = max(0, used - _CHUNK)
    used -= used % entry.size
    while used and not any(data[used - entry.size : used]):
        used -= entry.size
    entries = []
    for slot, (first, second) in enumerate(entry.iter_unpack(data[:used])):
        relative, value = (first, second) if entry is _OFFSET_ENTRY else (second, first)
        entries.append(IndexEntry(slot * entry.size, base_offset + relative, value))
    for before, after in itertools.pairwise(entries):
        if after.offset <= before.offset or after.value <= before.value:
            damages.append(Damage(path, after.at, f"entry is not increasing: {_shown(before)}, then {_shown(after)}"))
    return entries, damages


def _shown(entry: IndexEntry) -> str:
    return f"{entry.offset} -> {entry.value}"


class OffsetIndexCheck:
    """Compares the entries of an offset index with the batches of its log, which ``saw`` takes in order."""

    def __init__(self, path: Path, entries: list[IndexEntry]) -> None:
        self._path = path
        self._entries = {entry.value: entry for entry in entries}
        self._damages: list[Damage] = []
        self._read_to = 0

    def saw(self, batch: InspectedBatch) -> None:
        self._read_to = batch.position + batch.header.size
        entry = self._entries.pop(batch.position, None)
        if entry is not None and entry.offset < batch.header.base_offset:
            self._add(entry, f"points to a batch with a later base offset, {batch.header.base_offset}")

    def damages(self, *, whole_log: bool) -> list[Damage]:
        """Unless the whole log was read, entries that point behind the readable part are not checked."""
        for entry in self._entries.values():
            if whole_log or entry.value < self._read_to:
                self._add(entry, "does not point to the start of a batch")
        return sorted(self._damages)

    def _add(self, entry: IndexEntry, what: str) -> None:
        self._damages.append(Damage(self._path, entry.at, f"offset {entry.offset} -> position {entry.value} {what}"))


class TimeIndexCheck:
    """Compares the entries of a time index with the batches of its log, which ``saw`` takes in order."""

    def __init__(self, path: Path, entries: list[IndexEntry]) -> None:
        self._path = path
        self._entries = list(reversed(entries))
        self._damages: list[Damage] = []
        self._last_offset = -1
        self._largest = -1

    def saw(self, batch: InspectedBatch) -> None:
        while self._entries and self._entries[-1].offset < batch.header.base_offset:
            self._check(self._entries.pop())
        self._largest = max(self._largest, batch.header.max_timestamp)
        self._last_offset = max(self._last_offset, batch.header.last_offset)

    def damages(self, *, whole_log: bool) -> list[Damage]:
        while self._entries and self._entries[-1].offset <= self._last_offset:
            self._check(self._entries.pop())
        for entry in reversed(self._entries if whole_log else []):
            self._add(entry, f"is past the last offset of the log, {self._last_offset}")
        return sorted(self._damages)

    def _check(self, entry: IndexEntry) -> None:
        if entry.value != self._largest:
            self._add(entry, f"but the largest timestamp up to this offset is {self._largest}")

    def _add(self, entry: IndexEntry, what: str) -> None:
        self._damages.append(Damage(self._path, entry.at, f"timestamp {entry.value} -> offset {entry.offset} {what}"))


def read_checkpoint(path: Path) -> tuple[list[tuple[int, int]], list[Damage]]:
    """Returns (epoch, start offset) of each line of a leader-epoch-checkpoint, and the damage found."""
    lines = path.read_bytes().decode(errors="replace").splitlines()
    if len(lines) < 2 or lines[0].strip() != "0" or not lines[1].strip().isdecimal():
        return [], [Damage(path, 0, "does not start with version 0 and the number of entries")]
    entries: list[tuple[int, int]] = []
    damages = []
    for number, text in enumerate(lines[2:], start=3):
        words = text.split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            damages.append(Damage(path, 0, f"line {number} is not an epoch and an offset: '{text}'"))
            continue
        epoch, start = int(words[0]), int(words[1])
        if entries and (epoch <= entries[-1][0] or start <= entries[-1][1]):
            damages.append(Damage(path, 0, f"line {number} is not increasing: {epoch} {start}"))
        entries.append((epoch, start))
    if int(lines[1]) != len(lines) - 2:
        damages.append(Damage(path, 0, f"has {len(lines) - 2} entries, but its second line says {lines[1]}"))
    return entries, damages
