"""Writes the result of compaction: segments with all their files, under names that end in ``.cleaned``.

A batch that does not change is copied. One that loses records keeps its base offset and its last offset, so that no
offset changes and a producer's sequence numbers still end where they did; its header and CRC are rewritten, and its
records are compressed with the codec that they had.
"""

import struct
from bisect import bisect_right

from crc32c import crc32c

from skep.base.files.files import Buffer, Files
from skep.base.ids import Offset
from skep.records.batch import (
    APPEND_TIME_FLAG,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_END,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LENGTH_END,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    write_header,
)
from skep.records.compression import compress
from skep.storage.file_names import CLEANED
from skep.storage.segment.segment import Segment
from skep.storage.segment.transaction_index import AbortedTransaction

_PENDING_BYTES = 4 << 20
_PENDING_BUFFERS = 500
"""The kernel takes at most 1024 buffers in one write."""
_LARGEST = (1 << 31) - 1
_KEPT_WHEN_EMPTY = APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_CRC = struct.Struct(">I")


def rewritten(header: BatchHeader, records: Buffer, count: int, max_timestamp: int, horizon_ms: int | None) -> bytes:
    """Returns the batch with only these records, and with a delete horizon if one is given (KIP-534)."""
    packed = compress(header.attributes & CODEC_MASK, records)
    changed = header._replace(
        batch_length=HEADER_SIZE - LENGTH_END + len(packed), max_timestamp=max_timestamp, records_count=count
    )
    if horizon_ms is not None:
        changed = changed._replace(attributes=header.attributes | DELETE_HORIZON_FLAG, base_timestamp=horizon_ms)
    return _with_crc(changed, packed)


def emptied(header: BatchHeader) -> bytes:
    """Returns the header alone, which keeps the batch's offsets and its producer's sequence."""
    changed = header._replace(
        batch_length=HEADER_SIZE - LENGTH_END,
        attributes=header.attributes & _KEPT_WHEN_EMPTY,
        base_timestamp=NO_TIMESTAMP,
        records_count=0,
    )
    return _with_crc(changed, b"")


def _with_crc(header: BatchHeader, packed: bytes) -> bytes:
    head = write_header(header)
    crc = crc32c(packed, crc32c(head[CRC_END:]))
    return head[:17] + _CRC.pack(crc) + head[CRC_END:] + packed


class CleanedSegments:
    """The segments that replace one group of segments: one, unless not everything fits into it.

    Between calls everything that was added is in ``_pending`` or in the file of the last segment.
    """

    def __init__(self, files: Files, directory: str, base_offset: int, now_ms: int, index_interval_bytes: int) -> None:
        self.segments: list[Segment] = []
        self.size = 0
        self._files = files
        self._directory = directory
        self._now_ms = now_ms
        self._interval = index_interval_bytes
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._begin(base_offset)

    @property
    def _current(self) -> Segment:
        return self.segments[-1]

    def _begin(self, base_offset: int) -> None:
        if self.segments:
            self._write()
        segment = Segment.open(self._files, self._directory, base_offset, self._now_ms, create=True, suffix=CLEANED)
        # A pass that was interrupted may have left a file.
        segment.file.truncate(0)
        segment.keep_index(0, 0)
        self.segments.append(segment)

    def make_room(self, base_offset: int, last_offset: int, size: int) -> None:
        """Begins another segment if batches with these offsets and this size do not fit into the current one.

        Together the sources fit into one, but batches may grow when they are compressed again.
        """
        position = self._current.size + self._pending_bytes
        is_too_much = position + size > _LARGEST or last_offset - self._current.base_offset > _LARGEST
        if position and is_too_much:
            self._begin(base_offset)

    def add(self, data: Buffer, batches: list[tuple[int, int, int]]) -> None:
        """Adds the batches in ``data``; ``batches`` has (size, last offset, largest timestamp) of each."""
        segment = self._current
        position = segment.size + self._pending_bytes
        for size, last_offset, timestamp in batches:
            segment.count(position, size, last_offset, timestamp, self._interval)
            position += size
        self._pending.append(data)
        self._pending_bytes += len(data)
        self.size += len(data)
        if self._pending_bytes >= _PENDING_BYTES or len(self._pending) >= _PENDING_BUFFERS:
            self._write()

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Adds an entry to the index of the segment that holds the transaction's marker, which may not be the last one.

        In the index of a later segment recovery would take it for damage.
        """
        holds = bisect_right(self.segments, aborted.last_offset, key=lambda segment: segment.base_offset) - 1
        self.segments[holds].transaction_index.add(aborted)

    def _write(self) -> None:
        if self._pending:
            self._current.file.append(self._pending)
            self._pending, self._pending_bytes = [], 0

    def finish(self) -> list[Offset]:
        """Writes and syncs everything; returns the base offsets of the segments."""
        self._write()
        for segment in self.segments:
            segment.finish_indexes()
            segment.file.sync()
            for index in segment.indexes:
                if self._files.exists(index.path):
                    index.sync()
            segment.close()
        self._files.sync_directory(self._directory)
        return [segment.base_offset for segment in self.segments]

    def discard(self) -> None:
        for segment in self.segments:
            segment.close()
            self._files.remove(segment.file.path)
            for index in segment.indexes:
                self._files.remove(index.path)
