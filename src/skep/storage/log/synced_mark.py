"""The mark of a partition that syncs before it acknowledges: the file ``synced`` in its directory.

The file says that a power loss cannot take back anything that this replica has acknowledged, to a client or to its
leader. It has to be removed before anything is acknowledged that is not synced. That takes a sync of the directory, so
it happens with a flush, and the log goes on syncing before it acknowledges until then.
"""

import os

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset
from skep.storage.file_names import SYNCED


class MarkChange:
    """Creates or removes the mark as the last step of a flush plan, when everything else is durable.

    A disk that refuses does not fail the plan: ``problem`` says why.
    """

    __slots__ = ("is_made", "problem")

    def __init__(self, *, is_made: bool) -> None:
        self.is_made = is_made
        self.problem: str | None = "the plan was not carried out"

    def run(self, files: Files, directory: str) -> None:
        path = os.path.join(directory, SYNCED)
        try:
            if self.is_made:
                files.open(path, create=True)
            else:
                files.remove(path)
            files.sync_directory(directory)
        except StorageError as error:
            self.problem = str(error)
        else:
            self.problem = None


class SyncedMark:
    """Whether the mark is on disk, for the next start, and whether it may be made.

    ``was_made`` says whether it was there when the log was opened: everything acknowledged before that was synced.
    """

    __slots__ = ("_syncs_from", "is_made", "was_made")

    def __init__(self, *, is_made: bool, log_end_offset: Offset) -> None:
        self.was_made = self.is_made = is_made
        self.syncs_from(log_end_offset)

    def syncs_from(self, log_end_offset: Offset) -> None:
        """Notes that the log syncs before it acknowledges from ``log_end_offset`` on."""
        self._syncs_from = log_end_offset

    def may_be_made(self, log_end_offset: Offset) -> bool:
        """Returns whether a flush up to ``log_end_offset`` may make the mark.

        Everything that may have been acknowledged before the log synced first has to be synced, and something more.
        Nothing is appended before the cluster knows what this log may have lost; with a mark before that, a crash in
        between would leave a log that seems to have lost nothing.
        """
        return log_end_offset > self._syncs_from

    def create(self, files: Files, directory: str) -> None:
        """Makes the mark of a new partition, before its first append."""
        files.open(os.path.join(directory, SYNCED), create=True)
        self.is_made = True
