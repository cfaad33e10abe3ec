"""The offsets that the checkpoint files of a data directory hold: read at the start, collected from the logs, written.

There are four files, each with one offset for each partition: recovery points, log starts, high watermarks, and where
the last compaction of each log ended. They may lag behind, which costs recovery some time; they must never promise more
than the logs hold. So a truncation lowers them before it removes anything.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping

from skep.base.ids import Offset, TopicPartition
from skep.storage.directory.checkpoint_files import CheckpointFiles, Offsets
from skep.storage.file_names import CLEANED_UP_TO, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from skep.storage.log.log import Log
from skep.storage.segment.batch_scan import OFFSET_LIMIT

CHECKPOINTS_PER_STEP = 50

Work = Callable[[], None]
"""Something to be run in a thread. Raises StorageError when the disk refuses."""


class Checkpoints:
    """Owns the offsets of the checkpoint files.

    ``_recovery_points`` and ``_log_starts`` are those read at the start, for logs that have not been opened since.
    ``_cleaned_up_to`` is where the last compaction of each log ended; ``_has_cleaned_up_to`` is false if its file was
    lost. ``high_watermarks`` are those read at the start, or given since. ``missing`` are partitions that a checkpoint
    names and that have no files. ``_truncating`` is the offset at which each log that is being truncated is about to
    end.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.high_watermarks: Offsets = {}
        self.missing: set[TopicPartition] = set()
        self._files = files
        self._recovery_points: Offsets = {}
        self._log_starts: Offsets = {}
        self._cleaned_up_to: Offsets = {}
        self._has_cleaned_up_to = True
        self._truncating: Offsets = {}

    def read(self, names: Collection[str], on_disk: Collection[TopicPartition]) -> None:
        """Reads the files that are among ``names``; ``on_disk`` are the partitions that have a directory."""
        self._recovery_points = self._read(RECOVERY_POINTS, on_disk)
        self._log_starts = self._read(LOG_STARTS, on_disk)
        self.high_watermarks = self._read(HIGH_WATERMARKS, on_disk)
        self._has_cleaned_up_to = CLEANED_UP_TO in names or not on_disk
        self._cleaned_up_to = self._read(CLEANED_UP_TO, on_disk)
        if CLEANED_UP_TO not in names and not on_disk:
            # From now on a missing file means that it was lost.
            self._files.write(CLEANED_UP_TO, {})

    def _read(self, name: str, on_disk: Collection[TopicPartition]) -> Offsets:
        offsets = self._files.read(name)
        if offsets is None:
            self._has_cleaned_up_to &= name != CLEANED_UP_TO
            return {}
        missing = offsets.keys() - on_disk
        for partition in missing:
            self._files.forget(partition)
        self.missing |= missing
        return {partition: offset for partition, offset in offsets.items() if partition in on_disk}

    def recovery_point(self, partition: TopicPartition) -> Offset:
        """The recovery point that was read at the start."""
        return self._recovery_points.get(partition, Offset(0))

    def log_start(self, partition: TopicPartition) -> Offset:
        """The log start that was read at the start."""
        return self._log_starts.get(partition, Offset(0))

    def gaps_below(self, partition: TopicPartition, recovery_point: Offset | None, *, is_compacted: bool) -> Offset:
        """Returns the offset below which compaction may have left gaps.

        Before a compaction changes anything the log has an entry, and a recovery point past the end of the compaction.
        """
        cleaned_up_to = self._cleaned_up_to.get(partition)
        if cleaned_up_to is not None:
            return max(cleaned_up_to, recovery_point or Offset(0))
        return Offset(OFFSET_LIMIT) if is_compacted and not self._has_cleaned_up_to else Offset(0)

    def cleaned_up_to(self, partition: TopicPartition) -> Offset | None:
        """Returns where the last compaction ended; None when there was none, or it is not known."""
        return self._cleaned_up_to.get(partition)

    def note_cleaned(self, partition: TopicPartition, offset: Offset) -> None:
        """A checkpoint has to be written after this, before a compaction that changes the log and after it."""
        self._cleaned_up_to[partition] = offset

    def before_truncation(self, partition: TopicPartition, flushed_offset: Offset, end_offset: Offset) -> bool:
        """Lowers the offsets of a log that is about to end at ``end_offset``, or to start over if that is 0.

        Returns whether the files have to be written before the truncation. With a recovery point past the end, a
        restart after a crash would not check what was appended there.
        """
        self._truncating[partition] = end_offset
        must_write = flushed_offset > end_offset
        for offsets in (self._cleaned_up_to, self.high_watermarks):
            if offsets.get(partition, end_offset) > end_offset:
                offsets[partition] = end_offset
                must_write = True
        return must_write

    def after_truncation(self, partition: TopicPartition) -> None:
        self._truncating.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """Drops the offsets of a partition whose files are gone."""
        if self._truncating.pop(partition, None) != 0 or partition in self._cleaned_up_to:
            self._files.forget(partition)
        self.missing.discard(partition)
        for offsets in (self._recovery_points, self._log_starts, self._cleaned_up_to, self.high_watermarks):
            offsets.pop(partition, None)

    def is_stale(self, partition: TopicPartition) -> bool:
        """Returns whether the files may still hold offsets of an earlier partition of that name."""
        return self._files.may_speak_of(partition)

    def collect_in_slices(
        self,
        logs: Mapping[TopicPartition, Log],
        on_disk: Collection[TopicPartition],
        high_watermarks: Iterable[tuple[TopicPartition, Offset]],
    ) -> Generator[None, None, Work]:
        """Collects what the files are to hold; returns the work that writes them.

        High watermarks of partitions that are not among ``high_watermarks`` stay as they were given last. What is
        written is at least as new as the call that runs the first slice.
        """
        number = self._files.begin()
        for count, (partition, high_watermark) in enumerate(high_watermarks):
            if partition in on_disk:
                self.high_watermarks[partition] = min(high_watermark, self._truncating.get(partition, high_watermark))
            if count % CHECKPOINTS_PER_STEP == 0:
                yield
        recovery_points, log_starts = dict(self._recovery_points), dict(self._log_starts)
        for count, (partition, log) in enumerate(list(logs.items())):
            if logs.get(partition) is log:
                self._collect(log, partition in on_disk, recovery_points, log_starts)
            if count % CHECKPOINTS_PER_STEP == 0:
                yield
        return self._files.work(
            number,
            {
                LOG_STARTS: log_starts,
                RECOVERY_POINTS: recovery_points,
                CLEANED_UP_TO: dict(self._cleaned_up_to),
                # A log that is about to start over is left out, so that no checkpoint has to be written after that.
                HIGH_WATERMARKS: {p: hw for p, hw in self.high_watermarks.items() if self._truncating.get(p) != 0},
            },
        )

    def _collect(self, log: Log, is_on_disk: bool, recovery_points: Offsets, log_starts: Offsets) -> None:
        partition = log.topic_partition
        recovery_points.pop(partition, None)
        log_starts.pop(partition, None)
        if log.is_being_cut and not is_on_disk:
            return  # it starts over, and has no directory at the moment
        end_offset = self._truncating.get(partition)
        flushed_offset = log.flushed_offset if end_offset is None else min(log.flushed_offset, end_offset)
        if flushed_offset > 0:
            recovery_points[partition] = flushed_offset
        # Also of one that is a segment's first offset: it says that what was below was deleted, and not lost.
        if log.log_start_offset > 0 and end_offset != 0:
            log_starts[partition] = log.log_start_offset
