"""The index of the aborted transactions of a segment: a ``.txnindex``, as Kafka writes it.

An entry is added when an abort marker is appended, in the segment that holds the marker, wherever the transaction
began. 34 bytes each, big endian, in the order of the markers::

    version             int16   0
    producer_id         int64
    first_offset        int64   of the transaction's first batch
    last_offset         int64   the marker's
    last_stable_offset  int64   as it was with this marker; ``open_transactions.py`` says what it is for

There is no file where nothing was aborted, so unlike with the other indexes a missing file is no damage. An entry is
written at once, and synced with the log: recovery rebuilds only those of markers past the recovery point.
"""

import contextlib
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset
from skep.storage.segment.index import BLOCK_ENTRIES, Index

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET = 3
"""The number of that field in an entry."""


class AbortedTransaction(NamedTuple):
    """An entry of the index."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    """The offset of the abort marker."""
    last_stable_offset: Offset


class TransactionIndex(Index):
    __slots__ = ()

    def __init__(self, files: Files, path: str, base_offset: int, size: int = 0) -> None:
        super().__init__(files, path, base_offset, _ENTRY, size)

    def add(self, aborted: AbortedTransaction) -> None:
        self._append(_VERSION, *aborted)
        # The marker is in the log already, so its append must not fail: a refused entry waits for ``write_waiting``.
        with contextlib.suppress(StorageError):
            self.write_waiting()

    def finish(self) -> None:
        if self.count or self._files.exists(self.path):
            super().finish()

    def has_whole_file(self) -> bool:
        return not self._files.exists(self.path) or super().has_whole_file()

    def truncate(self, count: int) -> None:
        if count < self.count or (self._files.exists(self.path) and not super().has_whole_file()):
            super().truncate(count)

    def keep_below(self, offset: int) -> None:
        """Keeps the entries of markers below ``offset``, which were synced; what follows them may be damaged."""
        count, last = 0, self.base_offset - 1
        for entry in self._from_slot(0):
            if not (entry.first_offset < entry.last_offset < offset and entry.last_offset > last):
                break
            count, last = count + 1, entry.last_offset
        self.truncate(count)

    def overlapping(self, first: Offset, end: Offset) -> tuple[list[AbortedTransaction], bool]:
        """Returns the transactions with a record in [``first``, ``end``), and whether no later index has more of
        them."""
        found = []
        for entry in self._from_slot(self._first_above(first - 1, _LAST_OFFSET)):
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False

    def transactions(self) -> list[AbortedTransaction]:
        """Returns all entries, for checks and tools."""
        return list(self._from_slot(0))

    def _from_slot(self, slot: int) -> Iterator[AbortedTransaction]:
        while block := self._read(slot, min(slot + BLOCK_ENTRIES, self.count)):
            for fields in _ENTRY.iter_unpack(block):
                yield AbortedTransaction._make(fields[1:])
            slot += len(block) // _ENTRY.size


def aborted_between(indexes: Iterable[TransactionIndex], first: Offset, end: Offset) -> list[AbortedTransaction]:
    """Returns the transactions with a record in [``first``, ``end``); the first of ``indexes`` is of the segment that
    holds ``first``."""
    found: list[AbortedTransaction] = []
    for index in indexes:
        if index.count:
            some, is_all = index.overlapping(first, end)
            found += some
            if is_all:
                break
    return found
