"""Rebuilds a log's producers from snapshots and batches, and with them the indexes of aborted transactions.

The state at an offset is the newest good snapshot that is not past it, followed by the headers of the batches between
the two, and the content of markers. For the producers themselves that offset is the log end. To rebuild the entries of
an index, the transactions whose markers it holds have to be known, so for each index the state is loaded at or before
the first of these markers. Worked example, recovery point 50, the log ends at 90, snapshots at 0, 40 and 80::

    00000000000000000000.log  [0 ...                    its index is synced up to 50: the entries below are kept
                              ... [60 abort] ... [79]   state of 40, replayed from there: the entry of 60
    00000000000000000080.log  [80 ... 89]               no marker, no entry; producers: state of 80, replayed to 90
"""

import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset
from skep.records.batch import BatchHeader
from skep.records.end_txn_marker import read_marker
from skep.storage.file_names import SNAPSHOT, offset_name
from skep.storage.producers.producer_snapshots import NO_SNAPSHOT
from skep.storage.producers.producers import Producers
from skep.storage.segment.batch_scan import OFFSET_LIMIT, scan
from skep.storage.segment.segment import Segment
from skep.storage.segment.transaction_index import AbortedTransaction

logger = logging.getLogger(__name__)


class LostEntries(NamedTuple):
    """An index of aborted transactions that lacks the entries of markers from ``from_offset`` on."""

    segment: Segment
    from_offset: Offset
    first_marker: Offset
    """The first marker at or past ``from_offset``."""


class ProducerRecovery:
    """Reads the log once, forwards. Everything below ``_at`` is in ``_producers``.

    ``snapshot_offset`` is that of the snapshot that was loaded last.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        segments: Sequence[Segment],
        end_offset: Offset,
        snapshots: Sequence[Offset],
        now_ms: int,
        max_producers: int,
    ) -> None:
        self.snapshot_offset = NO_SNAPSHOT
        self._files = files
        self._directory = directory
        self._segments = segments
        self._end_offset = end_offset
        # Snapshots past the end are of batches that were cut. They are removed before the log is used again, so that
        # none is taken for a snapshot of batches that are appended at those offsets later.
        self._snapshots = sorted(snapshot for snapshot in snapshots if snapshot <= end_offset)
        self._now_ms = now_ms
        self._max_producers = max_producers
        self._producers = Producers(max_producers)
        self._at = NO_SNAPSHOT

    def rebuild_entries(self, lost: LostEntries) -> None:
        """Rebuilds the entries of one index. To be called in the order of the segments."""
        self._load_snapshot(lost.first_marker)
        following = [s.base_offset for s in self._segments if s.base_offset > lost.segment.base_offset]
        self._replay(following[0] if following else self._end_offset, lost)

    def producers(self) -> Producers:
        """Returns the producers at the log end."""
        self._load_snapshot(self._end_offset)
        self._replay(self._end_offset, None)
        return self._producers

    def _load_snapshot(self, limit: Offset) -> None:
        """Loads the newest good snapshot that is past ``_at`` and not past ``limit``, if there is one."""
        for snapshot in reversed([s for s in self._snapshots if self._at < s <= limit]):
            path = os.path.join(self._directory, offset_name(snapshot, SNAPSHOT))
            try:
                self._producers = Producers.decode(self._files.read_whole(path), self._max_producers)
            except (StorageError, ValueError) as error:
                logger.warning("%s: cannot read the snapshot, trying an older one: %s", path, error)
                self._snapshots.remove(snapshot)
            else:
                self._at = self.snapshot_offset = snapshot
                return

    def _replay(self, end: Offset, lost: LostEntries | None) -> None:
        for number, segment in enumerate(self._segments):
            is_last = number + 1 == len(self._segments)
            if segment.base_offset >= end or not (is_last or self._segments[number + 1].base_offset > self._at):
                continue
            place = segment.find_in_thread(self._at, segment.size)
            if place is None:
                continue
            for position, header, _ in scan(
                segment.file, position=place.position, from_offset=segment.base_offset, check_from=OFFSET_LIMIT
            ):
                if header.has_producer_id and header.base_offset >= self._at:
                    aborted = self._record(segment, position, header)
                    if aborted and lost and lost.segment is segment and aborted.last_offset >= lost.from_offset:
                        segment.transaction_index.add(aborted)
        self._at = end

    def _record(self, segment: Segment, position: int, header: BatchHeader) -> AbortedTransaction | None:
        # The time at which a batch was written is not known; remembering a producer for too long does no harm.
        if not header.is_control:
            self._producers.record(header, header.base_offset, self._now_ms)
            return None
        marker = read_marker(segment.file.read(position, header.size))
        if marker is None:
            return None
        return self._producers.record_marker(header, marker, header.base_offset, self._now_ms)
