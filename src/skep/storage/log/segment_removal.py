"""Removes segments that a log has detached from the disk, in two steps that run in a thread.

``mark`` renames the files to ``.deleted`` at once, so that a restart does not find them. ``remove`` deletes them after
``file.delete.delay.ms``, because responses may be sent from them. ``.deleted`` files that a crash leaves behind are
removed when the log is opened.
"""

import os
from dataclasses import dataclass

from skep.base.files.files import Files
from skep.storage.file_names import DELETED, SNAPSHOT, offset_name
from skep.storage.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class SegmentRemoval:
    """The removal of some detached segments. Both steps may be repeated after a StorageError."""

    files: Files
    directory: str
    segments: list[Segment]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def mark(self) -> None:
        """Renames the files to ``.deleted``. In a thread."""
        # The name of the segment that follows has to be durable first. If a power loss took it after the renames had
        # reached the disk, nothing would say at which offset the log continues, and it would start again at 0.
        self.files.sync_directory(self.directory)
        for segment in self.segments:
            if not segment.file.path.endswith(DELETED):
                self.files.rename_file(segment.file, segment.file.path + DELETED)
            for path in self._side_files(segment):
                if self.files.exists(path):
                    self.files.rename(path, path + DELETED)

    def remove(self) -> None:
        """Deletes the files. In a thread."""
        for segment in self.segments:
            segment.close()
            self.files.remove(segment.file.path)
            for path in self._side_files(segment):
                self.files.remove(path)
                self.files.remove(path + DELETED)

    def _side_files(self, segment: Segment) -> list[str]:
        snapshot = os.path.join(self.directory, offset_name(segment.base_offset, SNAPSHOT))
        return [*segment.side_paths, snapshot]
