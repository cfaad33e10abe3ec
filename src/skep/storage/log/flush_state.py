"""What of a log is not durable yet, and the plan that syncs it: made on the event loop, run in a thread.

    plan = log.flush_plan()          on the loop: a snapshot of what has to be synced
    plan.run()                       in a thread; raises StorageError when the disk refuses
    log.flushed(plan)                on the loop: the recovery point moves
    log.flush_failed(plan, error)    on the loop, instead

After a failed sync the kernel may have marked the pages clean without having written them: a second sync would succeed
and mean nothing. So the next plan first writes the unsynced bytes again, at the same place, from what can be read back,
and accepts what it reads only if the CRCs are right. Until a plan succeeds, the log takes no appends.

The recovery point moves only when all steps of a plan are done, so a crash between two of them needs no special case.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset
from skep.storage.file_names import LEADER_EPOCHS, PARTITION_METADATA, SNAPSHOT, offset_name
from skep.storage.log.leader_epochs import LeaderEpochs
from skep.storage.log.synced_mark import MarkChange
from skep.storage.segment.batch_scan import scan
from skep.storage.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """A snapshot of what is not durable yet. Nothing in it changes while a thread runs it."""

    files: Files
    directory: str
    from_offset: Offset
    end_offset: Offset
    segments: list[tuple[Segment, int]]
    """Segments with unsynced batches, and the size up to which each has to be synced."""
    indexes: list[Segment]
    """Segments whose indexes have to be synced."""
    aborts: list[Segment]
    """Segments that may still grow and whose index of aborted transactions has to be synced."""
    snapshots: list[Offset]
    old_snapshots: list[Offset]
    """Removed when the others are durable."""
    leader_epochs: bytes | None
    is_new_partition: bool
    has_new_names: bool
    must_rewrite: bool
    unflushed_since_ms: int | None
    mark: MarkChange | None

    def run(self) -> None:
        """Runs in a thread. Meanwhile appends may go to the last segment, and retention may remove the first ones,
        which then need no sync."""
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
            # Before the offset index: recovery accepts a segment that has one, and does not notice that the index of
            # aborted transactions is lost.
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
            raise StorageError(f"{segment.file.path}: offset {self.from_offset} cannot be found to be rewritten")
        end = place.position
        for position, header, batch in scan(
            segment.file, position=place.position, from_offset=place.base_offset, check_from=place.base_offset
        ):
            if position >= size:
                break
            segment.file.overwrite(position, batch)
            end = position + header.size
        if end < size:
            raise StorageError(f"{segment.file.path}: cannot read from byte {end} on, to rewrite it")

    def _snapshot_path(self, offset: Offset) -> str:
        return os.path.join(self.directory, offset_name(offset, SNAPSHOT))

    def _sync_side_file(self, path: str) -> None:
        """Syncs the file; after a failed sync replaces it, because its content can be recovered from the log."""
        try:
            if self.must_rewrite:
                self.files.write_atomically(path, self.files.read_whole(path))
            else:
                self.files.sync_file(path)
        except StorageError:
            if self.files.exists(path):
                raise


class FlushState:
    """What of a log is not durable yet. ``failure`` is set from a failed sync until one succeeds.

    ``is_half_cut`` is set when the disk refused to end a truncation. No flush repairs that, because the log in memory
    and the log on disk differ; a later truncation does.

    ``is_settled`` is false until what recovery found was made durable; ``unfinished`` are sealed segments whose indexes
    recovery rebuilt and did not write completely.

    The indexes of the active segment are not synced, because recovery rebuilds them. Those of a sealed segment are
    synced once, before the recovery point moves past it. The index of aborted transactions is synced with the batches:
    to rebuild an entry, recovery would have to read from the beginning of the transaction.
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
        "is_flushing",
        "is_half_cut",
        "is_settled",
        "unfinished",
        "unflushed_since_ms",
    )

    def __init__(
        self, flushed_offset: Offset, *, is_recovered: bool = False, unfinished: Sequence[Segment] = ()
    ) -> None:
        self.flushed_offset = flushed_offset
        self.unfinished = list(unfinished)
        self.is_settled = not is_recovered and not unfinished
        self.failure: str | None = None
        self.is_half_cut = False
        self.is_flushing = False
        self._new_aborts: list[Segment] = []
        self._new_indexes: list[Segment] = []
        self.unflushed_since_ms: int | None = None
        self._is_new_partition = False
        self._has_new_names = False
        self._new_snapshots: list[Offset] = []
        self._old_snapshots: list[Offset] = []

    def indexes_written(self, segment: Segment) -> None:
        """Notes that the indexes of ``segment`` are complete and have to be synced."""
        self._new_indexes.append(segment)

    def abort_written(self, segment: Segment) -> None:
        """Notes a new entry in the segment's index of aborted transactions; the first one creates the file."""
        if segment not in self._new_aborts:
            self._new_aborts.append(segment)
        self._has_new_names |= segment.transaction_index.count == 1

    def segment_begun(self, *, is_first: bool) -> None:
        """Notes a new segment, whose name has to be synced; with the first one also the partition's directory and
        metadata."""
        self._has_new_names = True
        self._is_new_partition |= is_first

    def snapshot_written(self, offset: Offset, *, replaces: Offset | None) -> None:
        """Notes a snapshot of the producers at ``offset``, which has to be synced before ``replaces`` is removed."""
        self._has_new_names = True
        self._new_snapshots.append(offset)
        if replaces is not None:
            self._old_snapshots.append(replaces)

    def detached(self, log_start_offset: Offset) -> None:
        """Drops what was below the new log start: it need not be synced any more."""
        self.flushed_offset = max(self.flushed_offset, log_start_offset)
        self._new_snapshots = [offset for offset in self._new_snapshots if offset >= log_start_offset]
        self._new_indexes = [segment for segment in self._new_indexes if segment.base_offset >= log_start_offset]
        self.unfinished = [segment for segment in self.unfinished if segment.base_offset >= log_start_offset]
        self._new_aborts = [segment for segment in self._new_aborts if segment.base_offset >= log_start_offset]

    def name_made(self) -> None:
        """Notes a new file in the partition's directory, whose name has to be synced."""
        self._has_new_names = True

    def truncation_failed(self, error: StorageError) -> None:
        """Stops appends and flushes until a truncation succeeds."""
        self.is_half_cut, self.failure = True, str(error)

    def truncated(self, end_offset: Offset, active: Segment) -> None:
        """Notes that the log ends at ``end_offset`` in ``active``; the snapshots past that are removed."""
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._new_snapshots = [offset for offset in self._new_snapshots if offset <= end_offset]
        self._old_snapshots = []
        self._new_indexes = [segment for segment in self._new_indexes if segment.base_offset < active.base_offset]
        self._new_aborts = [segment for segment in self._new_aborts if segment.base_offset <= active.base_offset]
        # A failure stays until a flush has rewritten what is left.
        self.is_half_cut = False

    def plan(
        self,
        files: Files,
        directory: str,
        segments: Sequence[Segment],
        end_offset: Offset,
        epochs: LeaderEpochs,
        mark: MarkChange | None = None,
    ) -> FlushPlan | None:
        """Returns the plan for everything that is not durable; None when there is nothing, or a plan is under way.

        Of two plans at once, the success of the second would mean nothing, because the kernel reports an error only
        once. Raises StorageError while the log is half cut.
        """
        if self.is_half_cut:
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
        # From here on the state collects what the plan does not cover; ``flush_failed`` puts the plan's part back.
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
            # The files were replaced, and the next entry must not be written to the old one. None was written
            # meanwhile, because a log whose sync has failed takes no appends.
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
