"""What a follower does with its log: it appends what its leader has, and takes back what its leader has not.

A copy is equal to the byte, batch by batch; where segments end may differ. Worked example: this broker led in epoch 1
and wrote up to 100, of which only 80 was copied before it was deposed. The new leader began epoch 2 at 80::

    00000000000000000000.log  [0,30][31,60]           truncate_to(80)
    00000000000000000061.log  [61,75][76,90][91,95]   [76,90] contains 80 and goes with all that follows: the file is
    00000000000000000096.log  [96,99]                 cut, the log ends at 76. 96.log is renamed to .deleted first

Nothing that is at or past the new end may be found again after a crash among what is appended later, so each step is
durable before the next: checkpoints that promise too much, segments from the last to the first, the cut. A crash in
between leaves a log that ends somewhere between the two.

A cut syncs four small files where a checkpoint has to be lowered, the directory for each segment that goes, and the
segment that is cut; and it reads the headers behind the newest snapshot, which may be those of a whole segment. So
there are two ways to cut: ``truncate_to`` does all of it here and now; ``begin_cut``, ``cut`` and ``end_cut`` are its
steps, of which the second may run in a thread, while nobody else uses the log
(``replication/follower/truncations.py``).

While a flush is under way all of them raise StorageError: its plan speaks of files as they were. Neither a pass of
compaction nor a removal of segments may be under way. Whoever is being sent bytes that go gets the old ones, or an
answer that ends short, which closes the connection, or those of other batches, where the CRC does not fit.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from skep.base.errors import StorageError
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import BatchHeader
from skep.records.end_txn_marker import read_marker
from skep.storage.file_names import DELETE_SUFFIX, DELETED, OFFSET_GAPS, away_name
from skep.storage.log.appender import AppendableLog
from skep.storage.log.flush_state import FlushState
from skep.storage.log.leader_epochs import LeaderEpochs
from skep.storage.log.log_slice import Places
from skep.storage.producers.producer_recovery import ProducerRecovery
from skep.storage.producers.producer_snapshots import NO_SNAPSHOT, ProducerSnapshots
from skep.storage.producers.producers import Producers
from skep.storage.replicated_batches import look_through
from skep.storage.segment.index_repair import cut_segment
from skep.storage.segment.segment import Segment


class Cut(NamedTuple):
    """Where a log is to end: in which segment, at which byte, at which offset."""

    number: int
    position: int
    end_offset: Offset
    must_write_checkpoints: bool
    """Before the cut: those on disk promise more than it leaves."""


class ReplicaLog(AppendableLog):
    __slots__ = ()

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The last epoch that the log knows of; -1 when it knows none."""
        return self._epochs.latest

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last batch, which may be deleted; -1 when there never was one."""
        return self._epochs.epoch_before(self.log_end_offset)

    # Appending what the leader has

    def append_replicated(self, records: bytes | memoryview, now_ms: int) -> int:
        """Appends the batches of a Fetch answer exactly as they are; says how many bytes that were.

        Whole batches that end below the log's end are skipped; one that is cut off at the end of ``records`` is
        ignored. Gaps between batches are compaction's. CORRUPT_MESSAGE for what no leader sends: bytes that are no
        batch, or not one whole, a CRC that is not right, a batch that overlaps what is there, an epoch that goes back;
        and StorageError when the disk refuses. What comes before that is appended: the log's end says how much.
        """
        self._check_not_being_cut()
        if self._flush.failure is not None:
            raise StorageError(self._flush.failure)
        view = memoryview(records)
        log_start = self.log_start_offset
        is_empty = log_start == self.log_end_offset
        batches, problem = look_through(view, self.log_end_offset, self._epochs.latest, may_overlap=is_empty)
        if batches:
            if (base_offset := batches[0][1].base_offset) < self.log_end_offset:
                # The leader's log start lies inside a batch, which was sent whole: the files begin with the batch.
                self.start_anew_at(base_offset)
            self._append_batches(view, batches, now_ms)
            self._move_start(log_start)
        if problem is not None:
            raise problem
        return batches[-1][0] + batches[-1][1].size - batches[0][0] if batches else 0

    def _append_batches(self, view: memoryview, batches: Sequence[tuple[int, BatchHeader]], now_ms: int) -> None:
        """In one write for all batches that go into one segment."""
        segment = self._active if self._active is not None else self._roll(now_ms)
        if not self._has_gaps and _has_gap(batches, self.log_end_offset):
            # First, for recovery would take the gap for damage.
            self._files.open(os.path.join(self.path, OFFSET_GAPS), create=True)
            self._flush.name_made()
            self._has_gaps = True
        run: list[tuple[int, BatchHeader]] = []
        held = segment.size
        for position, header in batches:
            size, last_offset, timestamp = header.size, header.last_offset, header.max_timestamp
            if segment.must_roll(held, size, last_offset, timestamp, now_ms, self.config):
                self._write_run(segment, view, run, now_ms)
                self.log_end_offset = header.base_offset
                segment, run, held = self._roll(now_ms), [], 0
            if held == 0:
                # By which the next batch decides whether it may come into the same segment.
                segment.first_timestamp = timestamp
            run.append((position, header))
            held += size
        self._write_run(segment, view, run, now_ms)

    def _write_run(
        self, segment: Segment, view: memoryview, run: Sequence[tuple[int, BatchHeader]], now_ms: int
    ) -> None:
        if not run:
            return
        begin, end = run[0][0], run[-1][0] + run[-1][1].size
        shift = segment.size - begin
        segment.file.append((view[begin:end],))
        for position, header in run:
            self._written(
                segment,
                position + shift,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.partition_leader_epoch,
                header,
                read_marker(bytes(view[position : position + header.size])) if header.is_control else None,
                now_ms,
            )

    # Taking back what the leader has not

    def truncate_to(self, offset: Offset) -> Offset:
        """Removes all batches that end at or past ``offset``; returns the log's end, which is never past that.

        After a StorageError the log takes no appends until this has gone through, or a start has recovered it.
        """
        cut = self.begin_cut(offset)
        if isinstance(cut, int):
            self.start_anew_at(cut)
        elif cut is not None:
            if cut.must_write_checkpoints:
                try:
                    self._keeper.write_checkpoints()
                except StorageError:
                    self.end_cut()
                    raise
            self.cut(cut)
            self.end_cut()
        return self.log_end_offset

    def begin_cut(self, offset: Offset) -> "Cut | Offset | None":
        """Finds where ``truncate_to(offset)`` cuts. None: there is nothing to cut. An offset: the log is to begin anew
        there, with ``start_anew_at``.

        From here on no checkpoint is begun that promises more than the cut leaves; one may have to be written first.
        """
        self._check_no_flush()
        if offset >= self.log_end_offset and not self._flush.is_condemned:
            # An epoch that began at the end and has no batch may be one that the leader does not know.
            self._epochs.truncate_end(self.log_end_offset)
            return None
        number = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1
        if number < 0:
            return offset
        place = self._segments[number].find(offset, self._segments[number].size)
        if place is None:
            position, end_offset = self._segments[number].size, min(offset, self.log_end_offset)
        else:
            position, end_offset = place.position, min(offset, Offset(place.base_offset))
        if end_offset < self.log_start_offset:
            # The start lies in the same batch: that one is not taken apart.
            return min(offset, self.log_start_offset)
        return Cut(number, position, end_offset, self._keeper.before_truncation(end_offset))

    def begin_anew(self) -> bool:
        """As ``begin_cut`` for ``start_anew_at``; returns whether a checkpoint has to be written before it, so that it
        need not write one itself."""
        self._check_no_flush()
        return self._keeper.before_truncation(Offset(0))

    def cut(self, cut: "Cut") -> None:
        """The work itself; may run in a thread. After a StorageError the log is condemned, see ``FlushState``."""
        try:
            self._cut(cut.number, cut.position, cut.end_offset)
        except StorageError as error:
            self._flush.condemn(error)
            raise

    def end_cut(self) -> None:
        """After ``cut`` has returned; or instead of it, and the log stays as it is."""
        self._keeper.after_truncation()

    def _check_no_flush(self) -> None:
        if self.is_flushing:
            raise StorageError(f"{self.topic_partition}: cannot be cut while a flush is under way")

    def _cut(self, number: int, position: int, end_offset: Offset) -> None:
        """Ends the log inside of segment ``number``, at ``position``. Each step may be done again."""
        active, doomed = self._segments[number], self._segments[number + 1 :]
        # First, so that a second try finds the same end although the batches that told it are gone.
        self.log_end_offset = end_offset
        for index in active.indexes:
            index.write_waiting()
        for segment in reversed(doomed):
            self._give_up(segment)
        kept = self._snapshots.remove_above(end_offset)
        self._files.sync_directory(self.path)
        cut_segment(active, position, end_offset, self.config.index_interval_bytes)
        self._segments = self._segments[: number + 1]
        self._active = active
        self._unfinished = [segment for segment in self._unfinished if segment in self._segments[:-1]]
        self._places = Places()
        self._epochs.truncate_end(end_offset)
        recovery = ProducerRecovery(
            self._files,
            self.path,
            self._segments,
            end_offset,
            kept,
            # They were all written before that; a moment too late does no harm.
            max(self.producers.latest_timestamp, self._opened_ms),
            self.producers.max_producers,
        )
        self.producers = recovery.producers()
        self._snapshots = ProducerSnapshots(
            self._files, self.path, recovery.snapshot_offset, self._segments, end_offset
        )
        self._flush.truncated(end_offset, active)
        self._check_marks()

    def _give_up(self, segment: Segment) -> None:
        """From the last segment to the first, each for good before the next: there must never be a hole."""
        if not segment.file.path.endswith(DELETED):
            self._files.rename_file(segment.file, segment.file.path + DELETED)
            self._files.sync_directory(self.path)
            self._keeper.discard(segment.file.path)
        segment.close()
        for side_path in segment.side_paths:
            self._files.remove(side_path)

    def start_anew_at(self, offset: Offset) -> None:
        """Everything goes; the log is empty, and begins and ends at ``offset``.

        For a follower whose records are all below the leader's log start, or damaged. After a StorageError the log is
        as it was, or empty. ``empty_at``, ``sync_move`` and ``begin`` are its steps, of which the second may run in a
        thread, while nobody else uses the log.
        """
        if self.empty_at(offset):
            self.sync_move()
        self.begin()

    def empty_at(self, offset: Offset) -> bool:
        """Renames the directory as that of a deleted partition, in one step; returns whether there was one."""
        self._check_no_flush()
        path, parent = self.path, os.path.dirname(self.path)
        has_moved = self._files.exists(path)
        if has_moved:
            away = os.path.join(parent, away_name(self.topic_partition, DELETE_SUFFIX))
            self._files.rename(path, away)
            self._keeper.moved_away(away)
            for segment in self._segments:
                # Whoever is being sent it goes on there.
                segment.file.path = os.path.join(away, os.path.basename(segment.file.path))
                segment.close()
        self._segments, self._active, self._unfinished = [], None, []
        self.log_start_offset = self.log_end_offset = offset
        self._flush = FlushState(offset)
        self._epochs = LeaderEpochs()
        self.producers = Producers(self.producers.max_producers)
        self._snapshots = ProducerSnapshots(self._files, path, NO_SNAPSHOT, [], offset)
        self._places = Places()
        self._has_gaps = self._has_aborted = self._is_marked_synced = False
        self._is_settled = True
        return has_moved

    def sync_move(self) -> None:
        """Before anything is written under the old name: the old directory must not come back."""
        self._files.sync_directory(os.path.dirname(self.path))

    def begin(self) -> None:
        """Makes a segment at once, for its name alone keeps the offset."""
        self._roll(self._opened_ms)


def _has_gap(batches: Sequence[tuple[int, BatchHeader]], next_offset: Offset) -> bool:
    for _, header in batches:
        if header.base_offset != next_offset:
            return True
        next_offset = header.next_offset
    return False
