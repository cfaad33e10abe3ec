"""Truncates a log at its end, and starts it over: what a follower does with records that its leader does not have.

Worked example: this broker led in epoch 1 and wrote up to 100, of which only 80 was copied before it was deposed. The
new leader began epoch 2 at 80::

    00000000000000000000.log  [0,30][31,60]           truncate_to(80)
    00000000000000000061.log  [61,75][76,90][91,95]   [76,90] contains 80 and is removed with all that follows: the file
    00000000000000000096.log  [96,99]                 is cut, the log ends at 76. 96.log is renamed to .deleted first

After a crash, nothing at or past the new end may be found among what is appended later. So each step is durable before
the next: checkpoints that promise too much, segments from the last to the first, the cut. A crash in between leaves a
log that ends somewhere between the two.

A truncation syncs four small files where a checkpoint has to be lowered, the directory for each segment that is
removed, and the segment that is cut; and it reads the headers behind the newest snapshot, which may be those of a whole
segment. So there are two ways to truncate: ``truncate_to`` does everything on the calling thread; ``begin_cut``,
``cut`` and ``end_cut`` are its steps, of which the second may run in a thread while nothing else uses the log
(``truncations.py``).

While a flush is under way every method raises StorageError, because the plan names files as they were. No compaction
and no removal of segments may be under way either. A response that is being sent from removed bytes carries the old
bytes, or ends short, which closes the connection, or carries bytes of other batches, whose CRC does not match.
"""

import os
from bisect import bisect_right
from typing import NamedTuple

from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.storage.file_names import DELETE_SUFFIX, DELETED, away_name
from skep.storage.log.log_state import LogState
from skep.storage.producers.producer_recovery import ProducerRecovery
from skep.storage.segment.index_repair import cut_segment
from skep.storage.segment.segment import Segment


class Cut(NamedTuple):
    """Where a log is to end: the number of the segment, the byte in its file, the offset."""

    number: int
    position: int
    end_offset: Offset
    must_write_checkpoints: bool
    """Whether the checkpoints on disk promise more than the cut leaves, and have to be written before it."""


class Truncator:
    """Truncates one log, in one call or in steps."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def truncate_to(self, offset: Offset) -> Offset:
        """Removes all batches that end at or past ``offset``; returns the log end, which is never past ``offset``.

        After a StorageError the log takes no appends until a call succeeds, or a restart has recovered the log.
        """
        cut = self.begin_cut(offset)
        if isinstance(cut, int):
            self.start_over_at(cut)
        elif cut is not None:
            if cut.must_write_checkpoints:
                try:
                    self._state.callbacks.write_checkpoints()
                except StorageError:
                    self.end_cut()
                    raise
            self.cut(cut)
            self.end_cut()
        return self._state.log_end_offset

    def begin_cut(self, offset: Offset) -> "Cut | Offset | None":
        """Returns where ``truncate_to(offset)`` cuts; None when there is nothing to cut; an offset when the log has to
        start over there, with ``start_over_at``.

        From here on no checkpoint is begun that promises more than the cut leaves; one may have to be written first.
        """
        self._check_no_flush()
        state = self._state
        if offset >= state.log_end_offset and not state.flush.is_half_cut:
            # The leader may not know an epoch that began at the log end and has no batch.
            state.epochs.truncate_end(state.log_end_offset)
            return None
        number = bisect_right(state.segments, offset, key=lambda segment: segment.base_offset) - 1
        if number < 0:
            return offset
        segment = state.segments[number]
        place = segment.find(offset, segment.size)
        if place is None:
            position, end_offset = segment.size, min(offset, state.log_end_offset)
        else:
            position, end_offset = place.position, min(offset, Offset(place.base_offset))
        if end_offset < state.log_start_offset:
            # The log start is in the same batch, and a batch is not split.
            return min(offset, state.log_start_offset)
        return Cut(number, position, end_offset, state.callbacks.before_truncation(end_offset))

    def cut(self, cut: "Cut") -> None:
        """Carries out the cut. May run in a thread. After a StorageError the log is half cut, see ``FlushState``."""
        try:
            self._cut(cut.number, cut.position, cut.end_offset)
        except StorageError as error:
            self._state.flush.truncation_failed(error)
            raise

    def end_cut(self) -> None:
        """Ends a cut after ``cut`` has returned, or gives it up before ``cut`` was called."""
        self._state.callbacks.after_truncation()

    def _check_no_flush(self) -> None:
        if self._state.flush.is_flushing:
            raise StorageError(f"{self._state.topic_partition}: cannot be truncated while a flush is under way")

    def _cut(self, number: int, position: int, end_offset: Offset) -> None:
        """Ends the log inside segment ``number``, at ``position``. Each step may be repeated."""
        state = self._state
        active, doomed = state.segments[number], state.segments[number + 1 :]
        # First, so that a second try cuts at the same offset although the batches that contained it are gone.
        state.log_end_offset = end_offset
        for index in active.indexes:
            index.write_waiting()
        for segment in reversed(doomed):
            self._discard(segment)
        kept = state.snapshots.remove_above(end_offset)
        state.files.sync_directory(state.path)
        cut_segment(active, position, end_offset, state.config.index_interval_bytes)
        state.cut_segments(number)
        recovery = ProducerRecovery(
            state.files,
            state.path,
            state.segments,
            end_offset,
            kept,
            # All of them were written before that; a time that is slightly too late does no harm.
            max(state.producers.latest_timestamp, state.opened_ms),
            state.producers.max_producers,
        )
        producers = recovery.producers()
        state.replace_producers(producers, recovery.snapshot_offset)
        state.flush.truncated(end_offset, active)
        state.check_marks()

    def _discard(self, segment: Segment) -> None:
        """Removes one segment durably. From the last to the first, so that there is never a hole."""
        files = self._state.files
        if not segment.file.path.endswith(DELETED):
            files.rename_file(segment.file, segment.file.path + DELETED)
            files.sync_directory(self._state.path)
            self._state.callbacks.discard(segment.file.path)
        segment.close()
        for side_path in segment.side_paths:
            files.remove(side_path)

    def start_over_at(self, offset: Offset) -> None:
        """Removes everything: the log is empty, and starts and ends at ``offset``.

        For a follower whose records are all below the leader's log start, or damaged. After a StorageError the log is
        as it was, or empty. ``empty_at``, ``sync_move`` and ``create_segment`` are its steps, of which the second may
        run in a thread while nothing else uses the log.
        """
        if self.empty_at(offset):
            self.sync_move()
        self.create_segment()

    def begin_start_over(self) -> bool:
        """The counterpart of ``begin_cut`` for ``start_over_at``; returns whether checkpoints have to be written before
        it, so that it need not write them itself."""
        self._check_no_flush()
        return self._state.callbacks.before_truncation(Offset(0))

    def empty_at(self, offset: Offset) -> bool:
        """Renames the directory as that of a deleted partition, in one step; returns whether there was one."""
        self._check_no_flush()
        state = self._state
        path = state.path
        has_moved = state.files.exists(path)
        if has_moved:
            away = os.path.join(os.path.dirname(path), away_name(state.topic_partition, DELETE_SUFFIX))
            state.files.rename(path, away)
            state.callbacks.moved_away(away)
            state.move_files_to(away)
            for segment in state.segments:
                segment.close()
        state.clear(offset)
        return has_moved

    def sync_move(self) -> None:
        """Syncs the data directory before anything is written under the old name: the old log must not come back."""
        self._state.files.sync_directory(os.path.dirname(self._state.path))

    def create_segment(self) -> None:
        """Creates a segment at once, because only its name keeps the offset."""
        self._state.roll(self._state.opened_ms)
