"""Making a log durable: what one sync has to do, planned on the event loop and done in a thread.

    plan = log.flush_plan()          on the loop: what is to be synced, as it is now
    plan.run()                       in a thread; StorageError when the disk refuses
    log.flushed(plan)                on the loop: the recovery point moves
    log.flush_failed(plan, error)    on the loop, instead

After a sync that failed the kernel may have marked the pages clean without having written them: a second sync would
succeed and mean nothing. So the next plan first writes the unsynced bytes again, at the same place, from what can be
read back, and believes what it reads only if the CRCs are right. Until a plan has gone through, the log takes no
appends; when the disk is well again, the next one heals it.

The recovery point moves only when all steps of a plan are done, so no crash between two of them is special.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset
from skep.storage.file_names import LEADER_EPOCHS, PARTITION_METADATA, SNAPSHOT, SYNCED, offset_name
from skep.storage.log.leader_epochs import LeaderEpochs
from skep.storage.segment.batch_scan import scan
from skep.storage.segment.segment import Segment


class MarkChange:
    """What a plan does to the mark of a partition that syncs before it acknowledges (``names.SYNCED``).

    It is made or removed when all else is durable. A disk that refuses does not fail the plan: ``problem`` says why.
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


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """A snapshot of what is not durable yet: nothing in it changes while a thread works on it."""

    files: Files
    directory: str
    from_offset: Offset
    end_offset: Offset
    segments: list[tuple[Segment, int]]
    """Those with unsynced batches, and the size up to which each is to be synced."""
    indexes: list[Segment]
    """Those whose indexes are to be synced."""
    aborts: list[Segment]
    """Those that may still grow, whose index of aborted transactions is to be synced."""
    snapshots: list[Offset]
    old_snapshots: list[Offset]
    """To be removed when the others are durable."""
    leader_epochs: bytes | None
    is_new_partition: bool
    has_new_names: bool
    must_rewrite: bool
    unflushed_since_ms: int | None
    mark: MarkChange | None

    def run(self) -> None:
        """Runs in a thread. Appends to the last segment may go on meanwhile, and retention may take the first away:
        what is not there any more needs no sync."""
        for segment, size in self.segments:
            try:
                if self.must_rewrite and self.from_offset < self.end_offset:
                    self._rewrite(segment, size)
                segment.file.sync()
            except StorageError:
                if self.files.exists(segment.file.path):
                    raise
        for segment in self.aborts:
            self._sync_side_file(segment.transaction_index.path)
        for segment in self.indexes:
            # First, for it alone is not missed when it is lost: a segment with an offset index is taken for whole.
            if segment.transaction_index.count:
                self._sync_side_file(segment.transaction_index.path)
            self._sync_side_file(segment.offset_index.path)
            self._sync_side_file(segment.time_index.path)
        for offset in self.snapshots:
            self._sync_side_file(self._snapshot_path(offset))
        if self.is_new_partition:
            self._sync_side_file(os.path.join(self.directory, PARTITION_METADATA))
        if self.leader_epochs is not None:
            self.files.write_atomically(os.path.join(self.directory, LEADER_EPOCHS), self.leader_epochs)
        elif self.has_new_names:
            self.files.sync_directory(self.directory)
        if self.is_new_partition:
            self.files.sync_directory(os.path.dirname(self.directory))
        for offset in self.old_snapshots:
            with contextlib.suppress(StorageError):  # the next start removes it
                self.files.remove(self._snapshot_path(offset))
        if self.mark is not None:
            self.mark.run(self.files, self.directory)

    def _rewrite(self, segment: Segment, size: int) -> None:
        place = segment.find_in_thread(self.from_offset, size)
        if place is None:
            if size == 0:
                return
            raise StorageError(f"{segment.file.path}: offset {self.from_offset} is not there to be written again")
        end = place.position
        for position, header, batch in scan(
            segment.file, position=place.position, from_offset=place.base_offset, check_from=place.base_offset
        ):
            if position >= size:
                break
            segment.file.overwrite(position, batch)
            end = position + header.size
        if end < size:
            raise StorageError(f"{segment.file.path}: byte {end} on cannot be read, to be written again")

    def _snapshot_path(self, offset: Offset) -> str:
        return os.path.join(self.directory, offset_name(offset, SNAPSHOT))

    def _sync_side_file(self, path: str) -> None:
        """What can be made again from the log is simply replaced after a failed sync."""
        try:
            if self.must_rewrite:
                self.files.write_atomically(path, self.files.read_whole(path))
            else:
                self.files.sync_file(path)
        except StorageError:
            if self.files.exists(path):
                raise


class FlushState:
    """What of a log is not durable yet. ``failure`` is set from a failed sync until one goes through.

    A log is condemned when a truncation was begun and the disk refused to end it: until one goes through, no flush
    heals it, for what is in memory and what is on disk are two different logs.

    The indexes of the active segment are not worth a sync, because recovery makes them again; those of a sealed one
    are synced once, before the recovery point moves past it. The index of aborted transactions is synced with the
    batches: to make an entry again, recovery would have to go back to where the transaction began.
    """

    __slots__ = (
        "_has_new_names",
        "_is_new_partition",
        "_new_aborts",
        "_new_indexes",
        "_new_snapshots",
        "_old_snapshots",
        "failure",
        "flushed_offset",
        "is_condemned",
        "is_flushing",
        "unflushed_since_ms",
    )

    def __init__(self, flushed_offset: Offset) -> None:
        self.flushed_offset = flushed_offset
        self.failure: str | None = None
        self.is_condemned = False
        self.is_flushing = False
        self._new_aborts: list[Segment] = []
        self._new_indexes: list[Segment] = []
        self.unflushed_since_ms: int | None = None
        self._is_new_partition = False
        self._has_new_names = False
        self._new_snapshots: list[Offset] = []
        self._old_snapshots: list[Offset] = []

    def indexes_written(self, segment: Segment) -> None:
        """The indexes of ``segment`` are complete and to be synced."""
        self._new_indexes.append(segment)

    def abort_written(self, segment: Segment) -> None:
        """The segment's index of aborted transactions has a new entry; the first makes the file."""
        if segment not in self._new_aborts:
            self._new_aborts.append(segment)
        self._has_new_names |= segment.transaction_index.count == 1

    def segment_begun(self, *, is_first: bool) -> None:
        """Its name is to be synced too; with the first segment, the partition's directory and what names its topic."""
        self._has_new_names = True
        self._is_new_partition |= is_first

    def snapshot_written(self, offset: Offset, *, replaces: Offset | None) -> None:
        """A snapshot of the producers at ``offset`` is to be synced too; after that, an earlier one may go."""
        self._has_new_names = True
        self._new_snapshots.append(offset)
        if replaces is not None:
            self._old_snapshots.append(replaces)

    def detached(self, log_start_offset: Offset) -> None:
        """What lay below is no longer there to be synced."""
        self.flushed_offset = max(self.flushed_offset, log_start_offset)
        self._new_snapshots = [offset for offset in self._new_snapshots if offset >= log_start_offset]
        self._new_indexes = [segment for segment in self._new_indexes if segment.base_offset >= log_start_offset]
        self._new_aborts = [segment for segment in self._new_aborts if segment.base_offset >= log_start_offset]

    def name_made(self) -> None:
        """A file was made in the partition's directory: its name is to be synced too."""
        self._has_new_names = True

    def condemn(self, error: StorageError) -> None:
        self.is_condemned, self.failure = True, str(error)

    def truncated(self, end_offset: Offset, active: Segment) -> None:
        """The log ends at ``end_offset`` in ``active`` now; all snapshots that were to go have gone."""
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._new_snapshots = [offset for offset in self._new_snapshots if offset <= end_offset]
        self._old_snapshots = []
        self._new_indexes = [segment for segment in self._new_indexes if segment.base_offset < active.base_offset]
        self._new_aborts = [segment for segment in self._new_aborts if segment.base_offset <= active.base_offset]
        # The failure stays, if there is one, until a flush has written again what is left.
        self.is_condemned = False

    def plan(
        self,
        files: Files,
        directory: str,
        segments: Sequence[Segment],
        end_offset: Offset,
        epochs: LeaderEpochs,
        mark: MarkChange | None = None,
    ) -> FlushPlan | None:
        """None when all is durable, or while a plan is under way: of two at once, the second could not know whether
        its success means anything, because the kernel reports an error only once. StorageError: is condemned."""
        if self.is_condemned:
            raise StorageError(self.failure)
        if self.is_flushing or not (
            end_offset > self.flushed_offset
            or self._has_new_names
            or self._new_indexes
            or epochs.is_changed
            or self.failure
            or (mark is not None and not mark.is_made)
        ):
            return None
        self.is_flushing = True
        first = len(segments) - 1
        while first > 0 and segments[first].base_offset > self.flushed_offset:
            first -= 1
        plan = FlushPlan(
            files=files,
            directory=directory,
            from_offset=self.flushed_offset,
            end_offset=end_offset,
            segments=[(segment, segment.size) for segment in segments[max(first, 0) :]],
            indexes=self._new_indexes,
            aborts=self._new_aborts,
            snapshots=self._new_snapshots,
            old_snapshots=self._old_snapshots,
            leader_epochs=epochs.encode() if epochs.is_changed else None,
            is_new_partition=self._is_new_partition,
            has_new_names=self._has_new_names,
            must_rewrite=self.failure is not None,
            unflushed_since_ms=self.unflushed_since_ms,
            mark=mark,
        )
        # From here on the state collects what the plan does not cover; flush_failed puts the plan's share back.
        self._new_snapshots, self._old_snapshots, self._new_indexes, self._new_aborts = [], [], [], []
        self._is_new_partition = self._has_new_names = False
        self.unflushed_since_ms = None
        epochs.is_changed = False
        return plan

    def flushed(self, plan: FlushPlan) -> None:
        self._ended(plan)
        self.failure = None
        self.flushed_offset = max(self.flushed_offset, plan.end_offset)

    def _ended(self, plan: FlushPlan) -> None:
        self.is_flushing = False
        if plan.must_rewrite:
            # The files were replaced; the next entry is not to be written into the old one. None was meanwhile,
            # because a log whose sync has failed takes no appends.
            for segment in plan.aborts:
                segment.transaction_index.close()

    def flush_failed(self, plan: FlushPlan, error: StorageError, epochs: LeaderEpochs) -> None:
        self._ended(plan)
        self.failure = str(error)
        self._new_snapshots = plan.snapshots + self._new_snapshots
        self._old_snapshots = plan.old_snapshots + self._old_snapshots
        self._new_indexes = plan.indexes + self._new_indexes
        self._new_aborts = plan.aborts + [segment for segment in self._new_aborts if segment not in plan.aborts]
        self._is_new_partition |= plan.is_new_partition
        self._has_new_names |= plan.has_new_names
        if plan.unflushed_since_ms is not None:
            self.unflushed_since_ms = plan.unflushed_since_ms
        epochs.is_changed |= plan.leader_epochs is not None
