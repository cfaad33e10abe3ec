"""One segment: a ``.log`` file with batches in offset order, its two indexes, and the index of aborted transactions.

The last segment of a log is the active one and grows; the others are sealed and never change. The end offset of a
sealed segment is at most the base offset of the next.
"""

import os
from bisect import bisect_right
from itertools import islice

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.files.files import File, Files
from skep.base.ids import Offset
from skep.records.batch import HEADER_SIZE, NO_TIMESTAMP, read_header
from skep.storage.file_names import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, offset_name
from skep.storage.segment.batch_scan import BatchPlace, FarAway, find_from, hop, place_at
from skep.storage.segment.index import Index, OffsetIndex, TimeIndex
from skep.storage.segment.transaction_index import TransactionIndex

_HIGHEST_RELATIVE_OFFSET = (1 << 31) - 1

LARGEST_INDEX_INTERVAL = 64 << 10
"""The index has an entry at least every so many bytes, whatever ``index.interval.bytes`` says.

A lookup walks from the entry before its offset to the batch, on the event loop: over a thousand small batches in half a
millisecond at most, where a segment of a gigabyte without entries took seconds.
"""
HOPS_AT_ONCE = 10_000
"""The number of batches that a lookup walks over on the event loop, which takes 5 ms. Only segments of an earlier
version, or of Kafka, with a large ``index.interval.bytes`` have more between two entries."""


class Segment:
    """Owns the segment's files. ``max_timestamp`` and its offset are those of the batches appended so far.

    Opening a sealed segment reads nothing; ``largest_timestamp`` reads the time index when it is first called.
    """

    __slots__ = (
        "_bytes_since_index",
        "_indexed_timestamp",
        "_is_timestamp_known",
        "_waypoints",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp",
        "index_entries",
        "jitter_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        file: File,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        transaction_index: TransactionIndex,
        created_ms: int,
    ) -> None:
        self.base_offset = Offset(offset_index.base_offset)
        self.file = file
        self.offset_index = offset_index
        self.time_index = time_index
        self.transaction_index = transaction_index
        self.created_ms = created_ms
        self.jitter_ms = 0
        self.first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.index_entries = offset_index.count
        self._indexed_timestamp = NO_TIMESTAMP
        self._bytes_since_index = 0
        self._is_timestamp_known = file.size == 0
        self._waypoints: list[BatchPlace] = []

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        base_offset: int,
        now_ms: int,
        *,
        create: bool = False,
        suffix: str = "",
    ) -> "Segment":
        """Returns the segment at ``base_offset``. Raises StorageError when its ``.log`` is missing and not ``create``.

        ``suffix`` ends the names of all its files while compaction writes it.
        """
        file = files.open(os.path.join(directory, offset_name(base_offset, LOG + suffix)), create=create)
        index_path = os.path.join(directory, offset_name(base_offset, OFFSET_INDEX + suffix))
        time_path = os.path.join(directory, offset_name(base_offset, TIME_INDEX + suffix))
        transaction_path = os.path.join(directory, offset_name(base_offset, TRANSACTION_INDEX + suffix))
        return cls(
            file,
            OffsetIndex(files, index_path, base_offset, _size_of(files, index_path) if file.size else 0),
            TimeIndex(files, time_path, base_offset, _size_of(files, time_path) if file.size else 0),
            TransactionIndex(
                files, transaction_path, base_offset, _size_of(files, transaction_path) if file.size else 0
            ),
            now_ms,
        )

    @property
    def size(self) -> int:
        return self.file.size

    def count(self, position: int, size: int, last_offset: int, timestamp: int, interval: int) -> None:
        """Notes a batch at ``position``, which was just appended or found by recovery, and adds index entries."""
        if position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = Offset(last_offset)
        if self._bytes_since_index > interval or self._bytes_since_index > LARGEST_INDEX_INTERVAL:
            self.offset_index.add(last_offset, position)
            self.index_entries += 1
            self._index_time()
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def _index_time(self) -> None:
        if self.max_timestamp > self._indexed_timestamp:
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
            self._indexed_timestamp = self.max_timestamp

    def finish_indexes(self) -> None:
        """Adds the entry of the largest timestamp and writes all entries, before the segment is sealed or closed.

        May be called again after a StorageError; nothing is added twice.
        """
        self._index_time()
        self.offset_index.finish()
        self.time_index.finish()
        self.transaction_index.finish()

    def has_index_files(self) -> bool:
        """Returns whether the required index files exist and contain only whole entries."""
        return (
            self.offset_index.has_whole_file()
            and self.time_index.has_whole_file()
            and self.transaction_index.has_whole_file()
        )

    @property
    def indexes(self) -> tuple[Index, ...]:
        """All indexes. The file of the last one, of aborted transactions, may not exist."""
        return (self.offset_index, self.time_index, self.transaction_index)

    @property
    def side_paths(self) -> list[str]:
        """The paths of the index files; that of aborted transactions may not exist."""
        return [index.path for index in self.indexes]

    def keep_index(self, count: int, time_count: int) -> int:
        """Keeps so many entries of the indexes; returns the position from which on the batches have to be counted
        again.

        That is the batch of the last entry; counting it twice changes nothing.
        """
        self.offset_index.truncate(count)
        self.index_entries = count
        self.time_index.truncate(time_count)
        timestamp, offset = self.time_index.last() or (NO_TIMESTAMP, self.base_offset)
        self.max_timestamp = self._indexed_timestamp = timestamp
        self.max_timestamp_offset = Offset(offset)
        self._is_timestamp_known = True
        self._bytes_since_index = 0
        self._waypoints = []
        return self.offset_index.entry(count - 1)[1] if count else 0

    def largest_timestamp(self) -> tuple[int, Offset]:
        """Returns (timestamp, last offset of the first batch that has it); (-1, base offset) without timestamps."""
        if not self._is_timestamp_known:
            timestamp, offset = self.time_index.last() or (NO_TIMESTAMP, self.base_offset)
            self.max_timestamp, self.max_timestamp_offset = timestamp, Offset(offset)
            self._is_timestamp_known = True
        return self.max_timestamp, self.max_timestamp_offset

    def first_batch_timestamp(self) -> int:
        """Returns the timestamp that the segment's age counts from; -1 when it is empty or has no timestamp."""
        if self.first_timestamp is None:
            header = self.file.read(0, HEADER_SIZE)
            self.first_timestamp = read_header(header).max_timestamp if len(header) == HEADER_SIZE else NO_TIMESTAMP
        return self.first_timestamp

    def must_roll(
        self, held: int, size: int, last_offset: int, timestamp: int, now_ms: int, config: TopicConfig
    ) -> bool:
        """Returns whether a batch of this size, last offset and timestamp has to begin a new segment.

        ``held`` is the size of the segment with what is about to be written before the batch. The age counts in the
        time of the records where they have one, so that records of one week share a segment however late they arrive.
        The index is full when either could not take its last two entries.
        """
        if held == 0:
            return last_offset - self.base_offset > _HIGHEST_RELATIVE_OFFSET
        first = self.first_timestamp if self.first_timestamp is not None else self.first_batch_timestamp()
        waited = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - self.created_ms
        return (
            held + size > config.segment_bytes
            or waited > config.roll_ms - self.jitter_ms
            or last_offset - self.base_offset > _HIGHEST_RELATIVE_OFFSET
            or (self.index_entries + 2) * 12 > config.segment_index_bytes
        )

    def find(self, offset: int, end: int) -> BatchPlace | None:
        """Returns the first batch before ``end`` whose last offset is ``offset`` or more. On the event loop.

        Raises StorageError when it is more than HOPS_AT_ONCE batches after the nearest index entry. The position that
        the walk reached is remembered, and the next call continues from there, so repeated calls succeed in the end.
        """
        try:
            return self._find(offset, end, HOPS_AT_ONCE)
        except FarAway as far:
            if not self._waypoints or far.place.position > self._waypoints[-1].position:
                self._waypoints.append(far.place)
            raise StorageError(
                f"{self.file.path}: the index has no entry near offset {offset}; the next request continues the search"
            ) from None

    def find_in_thread(self, offset: int, end: int) -> BatchPlace | None:
        """``find`` for a thread, which may walk over a whole segment."""
        return self._find(offset, end, None)

    def _find(self, offset: int, end: int, most_hops: int | None) -> BatchPlace | None:
        passed = self._waypoint_before(offset)
        start = max(self.offset_index.position_before(offset), passed)
        found = find_from(self.file, start, end, offset, most_hops)
        if found != end and start > passed and isinstance(found, int):
            # The index points into the middle of a batch: it is damaged, the log is not.
            found = find_from(self.file, passed, end, offset, most_hops)
        return None if isinstance(found, int) else found

    def _waypoint_before(self, offset: int) -> int:
        """Returns the position of the last waypoint that is not past ``offset``; 0 when there is none."""
        if not self._waypoints:
            return 0
        slot = bisect_right(self._waypoints, offset, key=lambda place: place.last_offset) - 1
        return self._waypoints[slot].position if slot >= 0 else 0

    def first_left_out(self, start: int, fits: int, limit: int) -> BatchPlace | None:
        """Returns the first batch that a slice from ``start`` leaves out. ``fits`` is the last position to which the
        slice may reach, ``limit`` the end of what could be read.

        The index has boundaries about ``index.interval.bytes`` apart, and the last of them that fits is close enough:
        the next read returns what is left out. Where it has none, the first batch that no longer fits is searched,
        among the first HOPS_AT_ONCE.
        """
        position = self.offset_index.last_up_to_position(fits, self.file.size)
        if position > start and (place := place_at(self.file, position, limit)) is not None:
            return place
        hops = hop(self.file, start, limit)
        return next((place for place in islice(hops, HOPS_AT_ONCE) if place.end > fits), None) or next(hops, None)

    def place_at(self, position: int, end: int) -> BatchPlace | None:
        return place_at(self.file, position, end)

    def close(self) -> None:
        self.file.close()
        self.close_indexes()

    def close_indexes(self) -> None:
        self.offset_index.close()
        self.time_index.close()
        self.transaction_index.close()


def _size_of(files: Files, path: str) -> int:
    return files.size(path) if files.exists(path) else 0
