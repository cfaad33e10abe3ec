"""Reading and checking a partition's index of aborted transactions and its producer snapshots.

Like ``file_inspection`` it shares no code with ``storage/``. An entry of the index is wrong if the segment has no abort
marker of that producer at the entry's last offset: consumers would skip records that they should return, or skip too
many.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from skep.cli.dump.file_inspection import Damage, InspectedBatch, base_offset_of
from skep.records.end_txn_marker import read_marker

_ABORTED = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_CRC_START = 6
_PRODUCER = struct.Struct(">qhiqiqiq")


class AbortedEntry(NamedTuple):
    at: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerRow(NamedTuple):
    """The state of a producer; -1 stands for an absent value."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


def read_aborted(path: Path) -> tuple[list[AbortedEntry], list[Damage]]:
    """Returns the entries of a ``.txnindex`` file and the damage of its format."""
    base_offset = base_offset_of(path)
    data = path.read_bytes()
    damages = []
    if torn := len(data) % _ABORTED.size:
        damages.append(Damage(path, len(data) - torn, f"incomplete entry: {torn} of its {_ABORTED.size} bytes"))
    entries: list[AbortedEntry] = []
    for slot, (version, *fields) in enumerate(_ABORTED.iter_unpack(data[: len(data) - torn])):
        entry = AbortedEntry(slot * _ABORTED.size, *fields)
        before = entries[-1].last_offset if entries else base_offset - 1
        if version != 0:
            damages.append(Damage(path, entry.at, f"entry has version {version}, not 0"))
        elif not entry.first_offset < entry.last_offset:
            problem = f"first offset {entry.first_offset} is not before last offset {entry.last_offset}"
            damages.append(Damage(path, entry.at, problem))
        elif entry.last_offset <= before:
            damages.append(Damage(path, entry.at, f"entry is not increasing: {before}, then {entry.last_offset}"))
        entries.append(entry)
    return entries, damages


class AbortedCheck:
    """Compares the entries with the batches of their log, which ``saw`` takes in order."""

    def __init__(self, path: Path, entries: list[AbortedEntry]) -> None:
        self._path = path
        self._entries = {entry.last_offset: entry for entry in entries}
        self._damages: list[Damage] = []
        self._last_offset = -1

    def saw(self, batch: InspectedBatch) -> None:
        header = batch.header
        self._last_offset = header.last_offset
        entry = self._entries.get(header.base_offset)
        if entry is None or not header.is_control or header.producer_id != entry.producer_id:
            return
        marker = read_marker(batch.data)
        if marker is not None and not marker.committed:
            del self._entries[header.base_offset]

    def damages(self, *, whole_log: bool) -> list[Damage]:
        for entry in self._entries.values():
            if whole_log or entry.last_offset <= self._last_offset:
                problem = f"no abort marker of producer {entry.producer_id} at offset {entry.last_offset}"
                self._damages.append(Damage(self._path, entry.at, problem))
        return sorted(self._damages)


def read_snapshot(path: Path) -> tuple[list[ProducerRow], list[Damage]]:
    """Returns the rows of a ``.snapshot`` file and the damage found in it."""
    base_offset_of(path)
    data = path.read_bytes()
    if len(data) < _SNAPSHOT_HEAD.size:
        return [], [Damage(path, 0, f"has {len(data)} bytes; a snapshot has at least {_SNAPSHOT_HEAD.size}")]
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    damages = []
    if version != 1:
        damages.append(Damage(path, 0, f"snapshot has version {version}, not 1"))
    if (found := crc32c(data[_CRC_START:])) != crc:
        damages.append(Damage(path, 2, f"CRC32C is {found:08x}, but the snapshot has {crc:08x}"))
    rows = data[_SNAPSHOT_HEAD.size :]
    if len(rows) != count * _PRODUCER.size:
        expected = count * _PRODUCER.size
        damages.append(Damage(path, _CRC_START, f"has {len(rows)} bytes of rows; {count} rows are {expected} bytes"))
    whole = rows[: len(rows) - len(rows) % _PRODUCER.size]
    return [ProducerRow._make(row) for row in _PRODUCER.iter_unpack(whole)], damages
