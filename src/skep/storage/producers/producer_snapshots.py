"""Writes snapshots of a log's producers and decides which are kept.

There is one at the beginning of each segment except the first, which is removed with the segment, and besides these the
newest. After a crash the headers of the batches after the newest snapshot are read to recover the producers. So that
this is not a whole segment, a snapshot is written with the first flush after every 64 MiB. A clean shutdown writes one
at the log end.
"""

import os
from collections.abc import Sequence

from skep.base.files.files import Files
from skep.base.ids import Offset
from skep.storage.file_names import SNAPSHOT, offset_name, parse_offset_name
from skep.storage.producers.producers import Producers
from skep.storage.segment.segment import Segment

INTERVAL_BYTES = 64 << 20
NO_SNAPSHOT = Offset(-1)


class ProducerSnapshots:
    """``newest`` is the offset of the newest snapshot; ``_loose`` is that of the one that belongs to no segment.

    ``_position`` is the size that the active segment had when the newest was written.
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

    def write(self, producers: Producers, offset: Offset, active: Segment) -> Offset | None:
        """Writes the snapshot at the log end, ``offset``, without a sync.

        Returns the offset of the loose snapshot that it replaces, which may be removed once this one is durable; None
        when there is none.
        """
        path = os.path.join(self._directory, offset_name(offset, SNAPSHOT))
        self._files.write_atomically(path, producers.encode(), sync=False)
        replaced = None if self._loose in (NO_SNAPSHOT, offset) else self._loose
        self.newest = self._loose = offset
        self._position = active.size
        return replaced

    def remove_above(self, end_offset: Offset) -> list[Offset]:
        """Removes the snapshots past ``end_offset``, where the log is about to be cut; returns the offsets of the
        others.

        The removal is durable with the next sync of the directory, which has to come before the next append: no
        snapshot may be taken for one of the batches that are appended at those offsets later.
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
        """Notes that a segment begins at the newest snapshot, which is no longer loose."""
        self._loose, self._position = NO_SNAPSHOT, 0
