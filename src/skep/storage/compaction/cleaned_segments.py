"""Writing what compaction leaves: segments with all their files, under names that end in ``.cleaned``.

A batch that stays as it is is copied. One that loses records keeps its base offset and its last offset, so that no
offset changes and a producer's sequence numbers still end where they did; its header and CRC are written anew, and
its records packed with the codec that it came with.
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
from skep.storage.producers.open_transactions import AbortedTransaction
from skep.storage.segment.segment import Segment

_PENDING_BYTES = 4 << 20
_PENDING_BUFFERS = 500
"""The kernel takes 1024 buffers in one write at the most."""
_LARGEST = (1 << 31) - 1
_KEPT_WHEN_EMPTY = APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_CRC = struct.Struct(">I")


def rewritten(header: BatchHeader, records: Buffer, count: int, max_timestamp: int, horizon_ms: int | None) -> bytes:
    """The batch with only these records, and with a delete horizon if there is one to be set (KIP-534)."""
    packed = compress(header.attributes & CODEC_MASK, records)
    changed = header._replace(
        batch_length=HEADER_SIZE - LENGTH_END + len(packed), max_timestamp=max_timestamp, records_count=count
    )
    if horizon_ms is not None:
        changed = changed._replace(attributes=header.attributes | DELETE_HORIZON_FLAG, base_timestamp=horizon_ms)
    return _with_crc(changed, packed)


def emptied(header: BatchHeader) -> bytes:
    """The header alone: what is kept of a batch for its offsets and its producer's sequence."""
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
    """The segments that take the place of one group of sources: one, unless not everything fits into it.

    Between calls all that was added is in ``_pending`` or in the file of the last one.
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
        # A pass that did not come to its end may have left something.
        segment.file.truncate(0)
        segment.keep_index(0, 0)
        self.segments.append(segment)

    def make_room(self, base_offset: int, last_offset: int, size: int) -> None:
        """Before batches are added that have these offsets and this size: begins another segment if they do not fit.

        Together the sources fit into one, but batches may grow when they are packed again.
        """
        position = self._current.size + self._pending_bytes
        is_too_much = position + size > _LARGEST or last_offset - self._current.base_offset > _LARGEST
        if position and is_too_much:
            self._begin(base_offset)

    def add(self, data: Buffer, batches: list[tuple[int, int, int]]) -> None:
        """``data`` is these batches: (size, last offset, largest timestamp) of each."""
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
        """An entry for the index of the segment that this transaction's marker was added to, which may not be the last.

        In the index of a later one recovery would take it for damage.
        """
        holds = bisect_right(self.segments, aborted.last_offset, key=lambda segment: segment.base_offset) - 1
        self.segments[holds].transaction_index.add(aborted)

    def _write(self) -> None:
        if self._pending:
            self._current.file.append(self._pending)
            self._pending, self._pending_bytes = [], 0

    def finish(self) -> list[Offset]:
        """Writes and syncs all of it; the base offsets of the segments."""
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
