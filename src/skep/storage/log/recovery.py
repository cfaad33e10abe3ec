"""Opens a log from disk, after a clean shutdown or after a crash.

After a clean shutdown nothing is scanned: the directory is listed, and the few batches after the last index entry tell
where the log ends. After a crash everything below the recovery point was synced and is trusted. From there on every
batch is checked (header, length and CRC), and the log is cut at the first bad one. Worked example, recovery point 50::

    00000000000000000000.log  [0,9][10,49]              sealed and synced, with its indexes: nothing is read
    00000000000000000050.log  [50,59][60,79][80,|       80 is torn: the file is cut after 79
    00000000000000000090.log  [90,99]                   good, but 80 to 89 are missing before it: removed

The log ends at 80. Nothing that was acknowledged after a flush is lost, because the recovery point is never ahead of
what is synced. In the segment that contains the recovery point the indexes are kept up to there and rebuilt after it;
so are the leader epochs. Every step can be repeated, so a crash during recovery needs no special case.
"""

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset, TopicPartition
from skep.storage.file_names import (
    DELETED,
    LEADER_EPOCHS,
    LOG,
    OFFSET_GAPS,
    OFFSET_INDEX,
    SNAPSHOT,
    SYNCED,
    TEMPORARY,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
    parse_offset_name,
)
from skep.storage.log.leader_epochs import LeaderEpochs
from skep.storage.log.log_content import LogContent
from skep.storage.log.segment_swap import finish_swaps
from skep.storage.log.torn_tail import is_torn
from skep.storage.producers.producer_recovery import LostEntries, ProducerRecovery
from skep.storage.producers.producers import MAX_PRODUCERS, Producers
from skep.storage.segment.batch_scan import OFFSET_LIMIT, scan
from skep.storage.segment.index_repair import keep_index_below
from skep.storage.segment.segment import Segment

logger = logging.getLogger(__name__)


class LogOnDisk(NamedTuple):
    """The log to open, and what the checkpoints of its data directory say about it."""

    files: Files
    path: str
    topic_partition: TopicPartition
    recovery_point: Offset | None
    """None after a clean shutdown."""
    log_start_offset: Offset
    max_producers: int = MAX_PRODUCERS
    gaps_below: Offset = Offset(0)
    """Compaction may have removed offsets below this one; from here on a missing offset is damage."""
    note_loss: Callable[[], None] = lambda: None
    """Called before recovery removes damaged data, which a second recovery could not find."""
    discard: Callable[[str], None] | None = None
    """Called with files of removed segments, which are deleted later. None: they are deleted at once."""
    lost_power: bool = False
    """Whether the machine was booted since the log was written: unsynced writes may have left zeros."""


def load_log(disk: LogOnDisk, index_interval_bytes: int, now_ms: int) -> LogContent:
    """Returns the content of the log. Raises StorageError when the disk refuses; the call may be repeated.

    ``Log.settle`` has to be called before the log is used, to make what was found durable. Until then nothing is
    written that needs room on the disk.
    """
    loader = _Loader(disk, index_interval_bytes, now_ms)
    return loader.load()


class _Loader:
    """Loads one log. ``end_offset`` is valid once ``segments`` is; both shrink when something has to be cut."""

    def __init__(self, disk: LogOnDisk, index_interval_bytes: int, now_ms: int) -> None:
        self.disk = disk
        self.files = disk.files
        self.name = str(disk.topic_partition)
        self.interval = index_interval_bytes
        self.now_ms = now_ms
        self.recovery_point = disk.recovery_point
        self.segments: list[Segment] = []
        self.snapshots: list[Offset] = []
        self.end_offset = Offset(0)
        self.epochs = LeaderEpochs()
        self.epochs_on_disk = LeaderEpochs()
        self.new_indexes: list[Segment] = []
        self.lost_entries: dict[Offset, LostEntries] = {}
        self.has_gaps = False
        self.is_synced = False
        self.gaps_below = disk.gaps_below
        self.lost_data = False

    def load(self) -> LogContent:
        if self.files.exists(self.disk.path):
            self._list()
        if self.segments:
            self._load_epochs()
            self._check_for_lost_beginning()
            if self.recovery_point is None and not self._find_end():
                logger.warning("%s: damaged although the shutdown was clean; recovering", self.name)
                self._lose()
                self.recovery_point = self.segments[-1].base_offset
            if self.recovery_point is not None:
                self._recover(self.recovery_point)
        self._apply_log_start()
        log_start_offset = max(self.disk.log_start_offset, self._first_offset())
        self._cut_epochs(log_start_offset)
        producers, snapshot_offset = self._load_producers()
        is_clean = self.recovery_point is None
        flushed_offset = self.end_offset if is_clean else min(self.recovery_point or Offset(0), self.end_offset)
        return LogContent(
            segments=self.segments,
            log_start_offset=log_start_offset,
            flushed_offset=flushed_offset,
            log_end_offset=self.end_offset,
            leader_epochs=self.epochs,
            producers=producers,
            snapshot_offset=snapshot_offset,
            is_recovered=not is_clean,
            new_indexes=[segment for segment in self.new_indexes if segment in self.segments],
            opened_ms=self.now_ms,
            has_gaps=self.has_gaps,
            is_synced=self.is_synced,
            lost_data=self.lost_data,
        )

    def _cut_epochs(self, log_start_offset: Offset) -> None:
        self.epochs.truncate_end(self.end_offset)
        self.epochs.truncate_before(log_start_offset)
        if self.end_offset == log_start_offset > 0:
            # All batches are deleted. Without the epoch in which they ended, any log with a batch would count as
            # longer. Batches that still exist are more reliable than the file.
            deleted = self.epochs_on_disk.epoch_before(log_start_offset)
            if deleted > self.epochs.latest:
                self.epochs.assign(deleted, Offset(log_start_offset - 1))

    def _check_for_lost_beginning(self) -> None:
        """Notes a loss when the first segments are missing.

        In the file of leader epochs the oldest epoch begins where the log does, or one record before if some were
        deleted. After a clean shutdown the checkpoint has the log start. After a crash it may be older, so one missing
        record may go unnoticed. The file may also be from before a deletion of segments, which are then taken for lost:
        the replica is compared with its leader's and found to be complete.
        """
        begins_at = self.epochs.entries[0][1] if self.epochs.entries else None
        first = self.segments[0].base_offset
        deleted = 0 if self.recovery_point is None else 1
        if begins_at is not None and max(begins_at + deleted, self.disk.log_start_offset) < first:
            logger.warning("%s: the log starts at %d and started at %d before", self.name, first, begins_at)
            self._lose()

    def _lose(self) -> None:
        if not self.lost_data:
            self.disk.note_loss()
            if self.is_synced:
                self.files.remove(os.path.join(self.disk.path, SYNCED))
                self.files.sync_directory(self.disk.path)
        self.lost_data = True
        self.is_synced = False

    def _first_offset(self) -> Offset:
        return self.segments[0].base_offset if self.segments else self.end_offset

    def _list(self) -> None:
        """Opens the segments and removes the files that an earlier process left behind."""
        finish_swaps(self.files, self.disk.path)
        bases, sides = [], []
        for name in self.files.list_directory(self.disk.path):
            parsed = parse_offset_name(name)
            if name == OFFSET_GAPS:
                self.has_gaps, self.gaps_below = True, Offset(OFFSET_LIMIT)
            elif name == SYNCED:
                self.is_synced = True
            elif name.endswith(DELETED) and self.disk.discard is not None:
                # Freeing a gigabyte may take a while, and a log is opened on the event loop.
                self.disk.discard(os.path.join(self.disk.path, name))
            elif name.endswith((DELETED, TEMPORARY)):
                self.files.remove(os.path.join(self.disk.path, name))
            elif parsed is not None and parsed[1] == LOG:
                bases.append(parsed[0])
            elif parsed is not None and parsed[1] == SNAPSHOT:
                self.snapshots.append(parsed[0])
            elif parsed is not None and parsed[1] in (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX):
                sides.append((parsed[0], name))
        for base_offset, name in sides:
            if base_offset not in bases:
                self.files.remove(os.path.join(self.disk.path, name))
        for base_offset in bases:
            segment = Segment.open(self.files, self.disk.path, base_offset, self.now_ms)
            self.segments.append(segment)

    def _find_end(self) -> bool:
        """Finds the log end after a clean shutdown; returns False when the last segment does not end with a batch."""
        for segment in self.segments[:-1]:
            self._check_indexes(segment)
        last = self.segments[-1]
        if not last.has_index_files():
            position, lost_from = last.keep_index(0, 0), last.base_offset
        else:
            position, lost_from = (
                last.keep_index(last.offset_index.count, last.time_index.count),
                Offset(OFFSET_LIMIT),
            )
        self.end_offset, size = self._count(last, position, OFFSET_LIMIT, lost_from)
        return size == last.size

    def _check_indexes(self, segment: Segment) -> None:
        """Rebuilds the indexes of a sealed segment when they are missing; they were synced with it."""
        if not segment.has_index_files():
            logger.warning("%s: indexes of segment %d are missing; rebuilding them", self.name, segment.base_offset)
            self._count(segment, segment.keep_index(0, 0), OFFSET_LIMIT, segment.base_offset)
            self.new_indexes.append(segment)

    def _count(self, segment: Segment, position: int, check_from: int, lost_from: Offset) -> tuple[Offset, int]:
        """Adds the batches from ``position`` on to the indexes; returns the end offset and the position of the end.

        The index of aborted transactions is rebuilt from the offset ``lost_from`` on.
        """
        end_offset = segment.base_offset
        self.lost_entries.pop(segment.base_offset, None)
        if lost_from < OFFSET_LIMIT:
            segment.transaction_index.keep_below(lost_from)
        for place, header, _ in scan(
            segment.file,
            position=position,
            from_offset=segment.base_offset,
            check_from=check_from,
            gaps_below=self.gaps_below,
        ):
            segment.count(place, header.size, header.last_offset, header.max_timestamp, self.interval)
            if header.partition_leader_epoch > self.epochs.latest:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.is_control and header.base_offset >= lost_from:
                lost = LostEntries(segment, lost_from, header.base_offset)
                self.lost_entries.setdefault(segment.base_offset, lost)
            position = place + header.size
            end_offset = header.next_offset
        return end_offset, position

    def _recover(self, recovery_point: Offset) -> None:
        self._recover_from(recovery_point)
        if self.end_offset < recovery_point:
            # The checkpoint promises more than there is: files were damaged or removed. Check everything.
            logger.warning("%s: ends at %d, below its recovery point %d", self.name, self.end_offset, recovery_point)
            self.recovery_point = Offset(0)
            self._lose()
            self._recover_from(Offset(0))

    def _recover_from(self, recovery_point: Offset) -> None:
        # Not the segment that begins at the recovery point, but the one before: it may have been synced up to its end
        # while it was active and sealed afterwards, so its indexes may not be durable.
        first = max((n for n, s in enumerate(self.segments) if s.base_offset < recovery_point), default=0)
        # Later entries of the file may be of truncated batches. The batches themselves are more reliable.
        self.epochs.truncate_end(recovery_point)
        for segment in self.segments[:first]:
            self._check_indexes(segment)
        self.end_offset = self.segments[first].base_offset
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            is_hole = segment.base_offset > max(self.end_offset, self.gaps_below)
            if segment.base_offset < self.end_offset or is_hole:
                self._lose()
                self._drop(number, f"offset {self.end_offset} is missing before it")
                break
            position = keep_index_below(segment, recovery_point) if number == first else segment.keep_index(0, 0)
            # Also when the other indexes are rebuilt from the start: entries below the recovery point are synced. If
            # they were rebuilt, a second crash could leave a good offset index and none of them, unnoticed.
            lost_from = max(recovery_point, segment.base_offset)
            self.end_offset, size = self._count(segment, position, recovery_point, lost_from)
            if size < segment.size:
                logger.warning(
                    "%s: removed %d bytes after offset %d (%s)",
                    self.name,
                    segment.size - size,
                    self.end_offset,
                    os.path.basename(segment.file.path),
                )
                is_last = number + 1 == len(self.segments)
                if not is_last or self.end_offset < recovery_point or not self._is_torn(segment, size):
                    self._lose()
                segment.file.truncate(size)
                self._drop(number + 1, "it follows the bytes that were removed")
                break
        self.new_indexes += self.segments[first:-1]

    def _is_torn(self, segment: Segment, position: int) -> bool:
        return is_torn(
            segment.file,
            position,
            base_offset=segment.base_offset,
            next_offset=self.end_offset,
            gaps_below=self.gaps_below,
            lost_power=self.disk.lost_power,
        )

    def _drop(self, number: int, reason: str) -> None:
        """Removes the segments from ``number`` on."""
        for segment in self.segments[number:]:
            logger.warning("%s: removing segment %d, %s", self.name, segment.base_offset, reason)
            segment.close()
            for path in (segment.file.path, *segment.side_paths):
                self.files.remove(path)
        del self.segments[number:]

    def _apply_log_start(self) -> None:
        """Removes all segments when the log start is past the log end; the log continues at the log start."""
        begin = max(self.disk.log_start_offset, self.disk.recovery_point or Offset(0))
        if not self.segments:
            self.end_offset = begin
            if (self.disk.recovery_point or 0) > self.disk.log_start_offset:
                self._lose()
        elif self.end_offset < self.disk.log_start_offset:
            self._drop(0, "the log start is past the end")
            self.end_offset = self.disk.log_start_offset

    def _load_epochs(self) -> None:
        path = os.path.join(self.disk.path, LEADER_EPOCHS)
        try:
            self.epochs = LeaderEpochs.decode(self.files.read_whole(path))
            self.epochs_on_disk = LeaderEpochs(self.epochs.entries)
        except (StorageError, ValueError):
            # Never flushed, or lost: the batches have the epochs. Past the recovery point they are read anyway.
            for segment in self.segments:
                for _, header, _ in scan(segment.file, from_offset=segment.base_offset, check_from=OFFSET_LIMIT):
                    if header.partition_leader_epoch > self.epochs.latest:
                        self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _load_producers(self) -> tuple[Producers, Offset]:
        """Returns the producers and the offset of their snapshot; rebuilds lost entries of aborted transactions."""
        recovery = ProducerRecovery(
            self.files,
            self.disk.path,
            self.segments,
            self.end_offset,
            self.snapshots,
            self.now_ms,
            self.disk.max_producers,
        )
        for _, lost in sorted(self.lost_entries.items()):
            if lost.segment in self.segments:
                recovery.rebuild_entries(lost)
        producers = recovery.producers()
        bases = {segment.base_offset for segment in self.segments}
        for snapshot in self.snapshots:
            if snapshot not in bases and snapshot != recovery.snapshot_offset:
                self.files.remove(self._snapshot_path(snapshot))
        return producers, recovery.snapshot_offset

    def _snapshot_path(self, offset: Offset) -> str:
        return os.path.join(self.disk.path, offset_name(offset, SNAPSHOT))
