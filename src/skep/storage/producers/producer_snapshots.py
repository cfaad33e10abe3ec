"""Writing snapshots of a log's producers, and which of them are kept.

There is one at the beginning of each segment but the first, which goes when the segment goes, and besides these the
newest. After a crash the headers of the batches behind the newest one are read to know the producers; so that this is
not a whole segment, one is written with the first flush after every 64 MiB. A clean stop writes one at the end.
"""

import os
from collections.abc import Sequence

from skep.base.files.files import Files
from skep.base.ids import Offset
from skep.storage.file_names import SNAPSHOT, offset_name, parse_offset_name
from skep.storage.log.flush_state import FlushState
from skep.storage.producers.producers import Producers
from skep.storage.segment.segment import Segment

INTERVAL_BYTES = 64 << 20
NO_SNAPSHOT = Offset(-1)


class ProducerSnapshots:
    """``newest`` is the offset of the newest that is there; ``_loose`` is the one that belongs to no segment.

    ``_position`` is where in the active segment the newest was taken.
    """

    __slots__ = ("_directory", "_files", "_loose", "_position", "newest")

    def __init__(self, files: Files, directory: str, newest: Offset, segments: Sequence[Segment], end: Offset) -> None:
        self.newest = newest
        self._files = files
        self._directory = directory
        is_loose = all(segment.base_offset != newest for segment in segments)
        self._loose = newest if is_loose else NO_SNAPSHOT
        self._position = segments[-1].size if segments and newest == end else 0

    def is_due(self, active: Segment) -> bool:
        return active.size - self._position >= INTERVAL_BYTES

    def write(self, producers: Producers, offset: Offset, active: Segment, flush: FlushState) -> None:
        """At the log end, ``offset``; durable with the next flush, and then the loose one before it goes."""
        path = os.path.join(self._directory, offset_name(offset, SNAPSHOT))
        self._files.write_atomically(path, producers.encode(), sync=False)
        flush.snapshot_written(offset, replaces=None if self._loose in (NO_SNAPSHOT, offset) else self._loose)
        self.newest = self._loose = offset
        self._position = active.size

    def remove_above(self, end_offset: Offset) -> list[Offset]:
        """Before a log is cut there: removes the snapshots past it, and gives the offsets of the others.

        The names are gone for good with the next sync of the directory, which has to come before the next append: none
        may be taken for one of the batches that come to those offsets later.
        """
        kept = []
        for name in self._files.list_directory(self._directory):
            parsed = parse_offset_name(name)
            if parsed is not None and parsed[1] == SNAPSHOT:
                if parsed[0] > end_offset:
                    self._files.remove(os.path.join(self._directory, name))
                else:
                    kept.append(parsed[0])
        return kept

    def segment_begun(self) -> None:
        """At the newest snapshot, which is no longer loose."""
        self._loose, self._position = NO_SNAPSHOT, 0
