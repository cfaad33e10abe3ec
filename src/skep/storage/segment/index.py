"""The two sparse indexes of a segment: offset -> position in the ``.log`` file, and timestamp -> offset.

Entries as Kafka writes them, big endian; offsets are relative to the segment's base offset::

    .index      relative_offset int32   the last offset of a batch
                position        int32   where that batch begins
    .timeindex  timestamp       int64   the largest timestamp so far, in the batches up to and including this entry's
                relative_offset int32   the last offset of the first batch that had it

Both increase strictly. An entry is added when more than ``index.interval.bytes`` of log were written since the last
one. The last entries of a growing index wait in memory and are written in groups; a crash loses them, and recovery
rebuilds them from the log. Nothing of a written index is kept in memory: a lookup probes the file, which is in the page
cache, and then searches one block of it.
"""

import struct
import sys
from array import array
from bisect import bisect_right

from skep.base.errors import StorageError
from skep.base.files.files import File, Files

GROUP_ENTRIES = 256
"""The most entries that wait in memory before they are written: 5 KiB with both indexes of a busy partition."""
BLOCK_ENTRIES = 256
"""The number of entries that a lookup reads at once."""
NEAR_ENTRIES = 16
"""The number of entries that a lookup reads first where it has a good guess."""

_OFFSET_ENTRY = struct.Struct(">ii")
_NEAR_POSITIONS = struct.Struct(">" + "4xi" * NEAR_ENTRIES)
_TIME_ENTRY = struct.Struct(">qi")


class Index:
    """Entries of one size in one file.

    ``_state`` is (entries in the file, bytes of the entries that wait). It is one object so that a lookup in a thread
    sees both change at once; only the event loop's thread changes it.
    """

    __slots__ = ("_entry", "_file", "_files", "_state", "base_offset", "path")

    def __init__(self, files: Files, path: str, base_offset: int, entry: struct.Struct, size: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._files = files
        self._file: File | None = None
        self._entry = entry
        self._state: tuple[int, bytearray | None] = (size // entry.size, None)

    @property
    def count(self) -> int:
        written, waiting = self._state
        return written + len(waiting) // self._entry.size if waiting else written

    @property
    def size(self) -> int:
        return self.count * self._entry.size

    def _append(self, *fields: int) -> None:
        written, waiting = self._state
        if waiting is None:
            self._state = (written, waiting := bytearray())
        waiting += self._entry.pack(*fields)
        if len(waiting) >= GROUP_ENTRIES * self._entry.size:
            try:
                self.write_waiting()
            except StorageError:
                # The batch is already in the log, so its append must not fail. The entries wait for the next one; there
                # cannot be many, because a disk without room for them has none for the log either.
                pass

    def write_waiting(self) -> None:
        """Writes the entries that wait, if any; after a StorageError they keep waiting."""
        written, waiting = self._state
        if not waiting:
            return
        file = self._trimmed()
        file.append((waiting,))
        self._state = (written + len(waiting) // self._entry.size, None)

    def finish(self) -> None:
        """Writes all entries that wait. Creates the file even if it is empty, because a missing one means damage."""
        self._trimmed()
        self.write_waiting()

    def has_whole_file(self) -> bool:
        return self._files.exists(self.path) and self._files.size(self.path) % self._entry.size == 0

    def truncate(self, count: int) -> None:
        """Keeps the first ``count`` entries, which are all in the file; recovery rebuilds the others."""
        self._state = (count, None)
        self._trimmed()

    def sync(self) -> None:
        """Syncs an index that no longer grows. In any thread."""
        self._opened().sync()

    def rename(self, path: str) -> None:
        """Renames the file, if there is one, without disturbing lookups in other threads."""
        if self._files.exists(self.path):
            self._files.rename_file(self._opened(), path)
        self.path = path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
        return self._file

    def _trimmed(self) -> File:
        """Returns the file, truncated after the entries that count: a removed segment may have left others."""
        file = self._opened()
        if file.size != (size := self._state[0] * self._entry.size):
            file.truncate(size)
        return file

    def entry(self, slot: int) -> tuple[int, int]:
        first, second = self._fields(slot)
        return first, second

    def _fields(self, slot: int) -> tuple[int, ...]:
        return self._entry.unpack(self._read(slot, slot + 1))

    def _read(self, low: int, high: int) -> bytes:
        written, waiting = self._state
        size = self._entry.size
        if low >= written:
            return bytes(waiting[(low - written) * size : (high - written) * size]) if waiting else b""
        block = self._opened().read(low * size, (min(high, written) - low) * size)
        if high > written and waiting:
            block += waiting[: (high - written) * size]
        return block

    def _first_above(self, wanted: int, field: int, near: int = -1) -> int:
        """Returns the first slot whose field is above ``wanted``; ``count`` when there is none.

        Reads blocks where the slot should be: from ``near`` on if the caller has a guess, else where it would be if the
        entries were evenly spaced, which they mostly are; after that in the middle of what is left.
        """
        low, high = 0, self.count
        while high - low > BLOCK_ENTRIES:
            if near < 0:
                first, last = self._fields(low)[field], self._fields(high - 1)[field]
                if not first <= wanted < last:
                    return low if wanted < first else high
                near = low + (high - low) * (wanted - first) // (last - first) - BLOCK_ENTRIES // 2
            start = max(low, min(near, high - BLOCK_ENTRIES))
            found = self._first_above_in(self._read(start, start + BLOCK_ENTRIES), wanted, field)
            if found == 0:
                high = start
            elif found == BLOCK_ENTRIES:
                low = start + BLOCK_ENTRIES
            else:
                return start + found
            near = (low + high - BLOCK_ENTRIES) // 2
        return low + self._first_above_in(self._read(low, high), wanted, field)

    def _first_above_in(self, block: bytes, wanted: int, field: int) -> int:
        size, unpack_from = self._entry.size, self._entry.unpack_from
        slots = range(len(block) // size)
        return bisect_right(slots, wanted, key=lambda slot: int(unpack_from(block, slot * size)[field]))

    def entries(self) -> list[tuple[int, int]]:
        """Returns all entries, for checks and tools."""
        pairs = self._entry.iter_unpack(self._read(0, self.count))
        return [(first, second) for first, second in pairs]


class OffsetIndex(Index):
    __slots__ = ()

    def __init__(self, files: Files, path: str, base_offset: int, size: int = 0) -> None:
        super().__init__(files, path, base_offset, _OFFSET_ENTRY, size)

    def add(self, last_offset: int, position: int) -> None:
        self._append(last_offset - self.base_offset, position)

    def position_before(self, offset: int) -> int:
        """Returns the position of the last entry whose offset is at most ``offset``; 0 before the first."""
        slot = self._first_above(offset - self.base_offset, 0) - 1
        return self.entry(slot)[1] if slot >= 0 else 0

    def last_up_to_position(self, position: int, log_size: int) -> int:
        """Returns the last position in the index that is not past ``position``; 0 if there is none.

        Every fetch that ends inside a segment calls this. Batches mostly have similar sizes, so the few entries around
        the expected slot are read first; if the result is not among them, a whole block is read, and then others.
        """
        count = self.count
        guess = position * count // max(log_size, 1)
        if count >= NEAR_ENTRIES:
            start = max(0, min(guess - NEAR_ENTRIES // 2, count - NEAR_ENTRIES))
            block = self._read(start, start + NEAR_ENTRIES)
            if len(block) == _NEAR_POSITIONS.size:
                positions = _NEAR_POSITIONS.unpack(block)
                # Only between two of them it is certain that no other entry is nearer.
                if positions[0] <= position < positions[-1]:
                    return int(positions[bisect_right(positions, position) - 1])
        slot = self._first_above(position, 1, max(guess - BLOCK_ENTRIES // 2, 0)) - 1
        return self.entry(slot)[1] if slot >= 0 else 0

    def _first_above_in(self, block: bytes, wanted: int, field: int) -> int:
        # As in the base class with less Python: every fetch in the middle of a log takes this path.
        numbers = array("i", block)
        if sys.byteorder == "little":
            numbers.byteswap()
        return bisect_right(numbers[field::2], wanted)


class TimeIndex(Index):
    __slots__ = ()

    def __init__(self, files: Files, path: str, base_offset: int, size: int = 0) -> None:
        super().__init__(files, path, base_offset, _TIME_ENTRY, size)

    def add(self, timestamp: int, offset: int) -> None:
        """``timestamp`` has to be above the last one."""
        self._append(timestamp, offset - self.base_offset)

    def last(self) -> tuple[int, int] | None:
        """Returns (timestamp, offset) of the last entry; None when there is none."""
        if (count := self.count) == 0:
            return None
        timestamp, relative = self.entry(count - 1)
        return timestamp, relative + self.base_offset

    def first_at_or_after(self, timestamp: int) -> int | None:
        """Returns the offset of the first entry that is not before ``timestamp``; None when there is none."""
        slot = self._first_above(timestamp - 1, 0)
        return self.entry(slot)[1] + self.base_offset if slot < self.count else None
