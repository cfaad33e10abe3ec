"""The state of one log: its segments and everything that is known about them.

``Appender``, ``ReplicaAppender``, ``Truncator``, ``LogReader`` and ``Flusher`` share one ``LogState`` and hold no copy
of it; ``Log`` is the front. The appenders move ``log_end_offset`` forward, the flusher replaces ``config``, and the
truncator replaces what a cut changes. Every change of the list of segments is a method here.
"""

import os
import random
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset, TopicPartition
from skep.storage.file_names import PARTITION_METADATA, encode_partition_metadata
from skep.storage.log.flush_state import FlushState
from skep.storage.log.leader_epochs import LeaderEpochs
from skep.storage.log.log_content import LogContent
from skep.storage.log.log_slice import Places
from skep.storage.log.synced_mark import SyncedMark
from skep.storage.producers.producer_snapshots import NO_SNAPSHOT, ProducerSnapshots
from skep.storage.producers.producers import Producers
from skep.storage.segment.segment import Segment


def _do_nothing(*_: object) -> None:
    pass


class DirectoryCallbacks(NamedTuple):
    """What a log calls in the data directory that holds it. The defaults are for a log outside of one."""

    before_creation: Callable[[], None] = _do_nothing
    """Called before the partition's directory is created. A StorageError refuses the append."""
    before_truncation: Callable[[Offset], bool] = lambda end_offset: False
    """Called before the log is cut at this offset, or with 0 before it starts over. Checkpoints that are begun after
    this call promise no more than that. Returns whether one has to be written before the cut."""
    write_checkpoints: Callable[[], None] = _do_nothing
    """Writes the checkpoints synchronously. A StorageError refuses the truncation."""
    after_truncation: Callable[[], None] = _do_nothing
    """Called when a truncation has ended, or was given up before it changed anything."""
    moved_away: Callable[[str], None] = _do_nothing
    """Called with the new path of the partition's directory, which no partition owns now and which is to be removed."""
    discard: Callable[[str], None] = _do_nothing
    """Called with a file that the log no longer uses; it is removed later."""


NO_CALLBACKS = DirectoryCallbacks()


class LogState:
    """Owns the partition's directory and everything in it.

    Between calls ``log_start_offset <= log_end_offset`` and ``flushed_offset <= log_end_offset`` hold, and ``active``
    is the last of ``segments``, or None before the first append. While ``is_being_cut`` a thread works on the log; any
    other use of it is refused with StorageError. ``has_gaps`` and ``has_aborted`` say whether the file ``offset-gaps``
    exists and whether some segment has an index of aborted transactions.
    """

    __slots__ = (
        "active",
        "callbacks",
        "config",
        "epochs",
        "files",
        "flush",
        "has_aborted",
        "has_gaps",
        "is_being_cut",
        "log_end_offset",
        "log_start_offset",
        "mark",
        "opened_ms",
        "path",
        "places",
        "producers",
        "segments",
        "snapshots",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        files: Files,
        path: str,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicConfig,
        content: LogContent,
        callbacks: DirectoryCallbacks,
    ) -> None:
        self.files = files
        self.path = path
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.callbacks = callbacks
        self.log_start_offset = content.log_start_offset
        self.log_end_offset = content.log_end_offset
        # Replaced, never changed in place: a thread that iterates over the list keeps the one it started with.
        self.segments = content.segments
        self.active: Segment | None = content.segments[-1] if content.segments else None
        self.epochs = content.leader_epochs
        self.producers = content.producers
        self.snapshots = ProducerSnapshots(
            files, path, content.snapshot_offset, content.segments, content.log_end_offset
        )
        self.places = Places()
        self.has_aborted = any(segment.transaction_index.count for segment in content.segments)
        self.has_gaps = content.has_gaps
        self.mark = SyncedMark(is_made=content.is_synced, log_end_offset=content.log_end_offset)
        self.flush = FlushState(
            content.flushed_offset, is_recovered=content.is_recovered, unfinished=content.new_indexes
        )
        self.opened_ms = content.opened_ms
        self.is_being_cut = False
        self.check_marks()

    def check_marks(self) -> None:
        assert self.log_start_offset <= self.log_end_offset, f"{self.topic_partition}: log start is past the end"
        assert self.flush.flushed_offset <= self.log_end_offset, f"{self.topic_partition}: flushed past the end"

    def check_not_being_cut(self) -> None:
        if self.is_being_cut:
            raise StorageError(f"{self.topic_partition}: the log is being truncated")

    def move_start(self, offset: Offset) -> None:
        """Raises the log start to ``offset``; it never moves back."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_before(offset)
            self.check_marks()

    def write_snapshot(self, active: Segment) -> None:
        """Writes a snapshot of the producers at the log end, which the next flush makes durable."""
        replaced = self.snapshots.write(self.producers, self.log_end_offset, active)
        self.flush.snapshot_written(self.log_end_offset, replaces=replaced)

    def roll(self, now_ms: int) -> Segment:
        """Seals the active segment and creates the next one at the log end.

        The first segment creates the partition's directory. After a StorageError the call may be repeated.
        """
        sealed = self.active
        if sealed is None:
            self._create_directory()
        else:
            sealed.finish_indexes()
            self.write_snapshot(sealed)
        segment = Segment.open(self.files, self.path, self.log_end_offset, now_ms, create=True)
        if segment.size:
            raise StorageError(f"{segment.file.path}: cannot create a segment, the file exists and is not empty")
        segment.jitter_ms = random.randint(0, min(self.config.segment_jitter_ms, self.config.roll_ms))
        if sealed is not None:
            sealed.close_indexes()
            self.flush.indexes_written(sealed)
        self.flush.segment_begun(is_first=sealed is None)
        self.segments = [*self.segments, segment]
        self.active = segment
        self.snapshots.segment_begun()
        return segment

    def _create_directory(self) -> None:
        self.callbacks.before_creation()
        self.files.make_directory(self.path)
        metadata = encode_partition_metadata(self.topic_id)
        self.files.write_atomically(os.path.join(self.path, PARTITION_METADATA), metadata, sync=False)
        if self.config.syncs_before_acknowledging:
            # The first flush makes it durable, before the first acknowledgement.
            self.mark.create(self.files, self.path)

    def drop_oldest(self, count: int) -> None:
        """Removes the oldest segments from the list; the log starts at the first that remains."""
        self.segments = self.segments[count:]
        base_offset = self.segments[0].base_offset
        self.move_start(base_offset)
        self.flush.detached(base_offset)

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Puts ``new`` in the place of ``old``, which are sealed neighbours and synced."""
        first = self.segments.index(old[0])
        end = first + len(old)
        assert self.segments[first:end] == list(old) and end < len(self.segments), "only sealed neighbours"
        assert self.segments[end].base_offset <= self.flush.flushed_offset, "only what is synced"
        self.segments = [*self.segments[:first], *new, *self.segments[end:]]
        self.places = Places()

    def cut_segments(self, number: int) -> None:
        """Makes segment ``number`` the last one, after it was truncated to the log end."""
        active = self.segments[number]
        self.segments = self.segments[: number + 1]
        self.active = active
        self.flush.unfinished = [one for one in self.flush.unfinished if one.base_offset < active.base_offset]
        self.places = Places()
        self.epochs.truncate_end(self.log_end_offset)

    def replace_producers(self, producers: Producers, snapshot_offset: Offset) -> None:
        """Takes the producers that were recovered at the log end, from the snapshot at ``snapshot_offset``."""
        self.producers = producers
        self.snapshots = ProducerSnapshots(self.files, self.path, snapshot_offset, self.segments, self.log_end_offset)

    def clear(self, offset: Offset) -> None:
        """Empties the log, which starts and ends at ``offset`` from now on and has no segment."""
        self.segments, self.active = [], None
        self.log_start_offset = self.log_end_offset = offset
        self.epochs = LeaderEpochs()
        self.producers = Producers(self.producers.max_producers)
        self.snapshots = ProducerSnapshots(self.files, self.path, NO_SNAPSHOT, [], offset)
        self.places = Places()
        self.flush = FlushState(offset)
        self.mark.is_made = False
        self.has_gaps = self.has_aborted = False

    def move_files_to(self, path: str) -> None:
        """Notes that the directory was renamed: responses under way go on reading the renamed files."""
        for segment in self.segments:
            segment.file.path = os.path.join(path, os.path.basename(segment.file.path))
