"""How a log becomes durable: what of it is synced when, and what is written before it is closed.

``AppendableLog``, ``ReplicaLog`` and ``Log`` add appending, truncating, reading and deleting. The calls that make up a
flush, and in which thread each belongs, are described in ``flush.py``; the marks in ``log.py``.
"""

import logging
import os
from collections.abc import Sequence

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.ids import Offset, TopicPartition
from skep.storage.log.flush_state import FlushPlan, FlushState, MarkChange
from skep.storage.log.log_content import LogContent
from skep.storage.producers.producer_snapshots import ProducerSnapshots
from skep.storage.segment.segment import Segment

logger = logging.getLogger(__name__)


class DurableLog:
    """The segments of a log with what is known of them, and which part of that is on the disk for good.

    While ``is_being_cut`` a thread works on it, and nothing else may: what is asked of it is refused with StorageError.
    """

    __slots__ = (
        "_active",
        "_epochs",
        "_files",
        "_flush",
        "_has_gaps",
        "_is_marked_synced",
        "_is_settled",
        "_next_config",
        "_opened_ms",
        "_segments",
        "_snapshots",
        "_synced_from",
        "_unfinished",
        "config",
        "is_being_cut",
        "log_end_offset",
        "log_start_offset",
        "path",
        "producers",
        "topic_partition",
        "was_synced",
    )

    def __init__(
        self, files: Files, path: str, topic_partition: TopicPartition, config: TopicConfig, content: LogContent
    ) -> None:
        self.topic_partition = topic_partition
        self.config = config
        self._next_config: TopicConfig | None = None
        self.path = path
        self.log_start_offset = content.log_start_offset
        self.log_end_offset = content.log_end_offset
        self.producers = content.producers
        self._files = files
        # Replaced, never changed in place: a thread that walks over it keeps the list it began with.
        self._segments = content.segments
        self._active: Segment | None = content.segments[-1] if content.segments else None
        self._epochs = content.leader_epochs
        self._snapshots = ProducerSnapshots(
            files, path, content.snapshot_offset, content.segments, content.log_end_offset
        )
        self._has_gaps = content.has_gaps
        self.was_synced = self._is_marked_synced = content.is_synced
        self._synced_from = content.log_end_offset + 1
        self._opened_ms = content.opened_ms
        self._unfinished = content.new_indexes
        self._is_settled = not content.is_recovered and not content.new_indexes
        self._flush = FlushState(content.flushed_offset)
        self.is_being_cut = False
        self._check_marks()

    def _check_marks(self) -> None:
        assert self.log_start_offset <= self.log_end_offset, f"{self.topic_partition}: log start is past the end"
        assert self.flushed_offset <= self.log_end_offset, f"{self.topic_partition}: flushed past the end"

    def _check_not_being_cut(self) -> None:
        if self.is_being_cut:
            raise StorageError(f"{self.topic_partition}: is being truncated")

    def _move_start(self, offset: Offset) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._epochs.truncate_before(offset)
            self._check_marks()

    @property
    def size(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last one is the active one. Not to be changed."""
        return self._segments

    @property
    def flushed_offset(self) -> Offset:
        return self._flush.flushed_offset

    @property
    def unflushed_records(self) -> int:
        return self.log_end_offset - self._flush.flushed_offset

    @property
    def failure(self) -> str | None:
        """Why the log takes no appends: its last sync failed and no later one has gone through."""
        return self._flush.failure

    @property
    def is_half_cut(self) -> bool:
        """Whether a truncation was begun that the disk refused to end; ``truncate_to`` the log's end ends it."""
        return self._flush.is_condemned

    @property
    def is_flushing(self) -> bool:
        return self._flush.is_flushing

    def flush_is_due(self, now_ms: int) -> bool:
        """By ``flush.messages``, by ``flush.ms``, because a sealed segment waits for it, or to heal a failed sync."""
        state, config = self._flush, self.config
        if state.is_flushing or self.is_being_cut:
            return False
        if state.failure is not None or self.unflushed_records >= config.flush_messages or self.is_config_waiting:
            return True
        if state.unflushed_since_ms is not None and now_ms - state.unflushed_since_ms >= config.flush_ms:
            return True
        return self._active is not None and state.flushed_offset < self._active.base_offset

    def flush_plan(self) -> FlushPlan | None:
        """What to sync now; None when there is nothing, or a plan is under way: ask again when that is done."""
        self._check_not_being_cut()
        if self.is_flushing:
            return None
        if self._active is None and not self._files.exists(self.path):
            # Its leader may have begun an epoch; there is no place to write that to, and no batch that has it.
            return None
        if not self._is_settled:
            return self.closing_plan()
        if self._active is not None:
            # Entries that the disk refused when they were made: the recovery point must not pass them.
            self._active.transaction_index.write_waiting()
        if self._active is not None and self._snapshots.is_due(self._active):
            try:
                self._snapshots.write(self.producers, self.log_end_offset, self._active, self._flush)
            except StorageError as error:
                logger.warning("%s: no snapshot of the producers: %s", self.topic_partition, error)
        return self._flush.plan(
            self._files, self.path, self._segments, self.log_end_offset, self._epochs, self._mark_change()
        )

    def flushed(self, plan: FlushPlan) -> None:
        self._flush.flushed(plan)
        self._check_marks()
        if plan.mark is not None:
            self._mark_changed(plan.mark)

    # Whether a power cut can take back what was acknowledged. ``was_synced`` says it of the time before the log was
    # opened; ``_is_marked_synced`` whether the mark for the next start is on the disk. The mark has to be gone before
    # anything is acknowledged that is not synced. That takes a sync of the directory, so it is done with a flush: until
    # then the log goes on to sync before it acknowledges, and ``_next_config`` waits.

    @property
    def is_config_waiting(self) -> bool:
        """Whether a flush has something to do although all is synced: after it the log need not sync any more."""
        return self._next_config is not None

    def configure(self, config: TopicConfig) -> None:
        """Replaces the config. One that no longer syncs before it acknowledges does so until the next flush."""
        if config.syncs_before_acknowledging and not self.config.syncs_before_acknowledging:
            self._synced_from = self.log_end_offset + 1
        # Also when ``_is_marked_synced`` is not set: a plan may be making the mark, or have failed after that.
        is_marking = self.config.syncs_before_acknowledging and self._active is not None
        self._take_config(config, may_be_marked=self._is_marked_synced or is_marking)

    def _take_config(self, config: TopicConfig, may_be_marked: bool) -> None:
        must_wait = may_be_marked and not config.syncs_before_acknowledging
        self.config = config.with_syncs if must_wait else config
        self._next_config = config if must_wait else None

    def _mark_change(self) -> MarkChange | None:
        """The mark is made once all is synced that may have been acknowledged before this log synced first, and
        something more.

        Nothing is appended before the cluster knows what this log may have lost. With a mark before that, a crash in
        between would leave a log that seems to have lost nothing.
        """
        if self._next_config is not None:
            return MarkChange(is_made=False)
        if self._is_marked_synced or not self.config.syncs_before_acknowledging:
            return None
        if self._active is None or self.log_end_offset < self._synced_from:
            return None
        return MarkChange(is_made=True)

    def _mark_changed(self, mark: MarkChange) -> None:
        if mark.problem is not None:
            what = "be marked as synced" if mark.is_made else "lose its mark as synced, and keeps its config"
            logger.warning("%s: cannot %s: %s", self.topic_partition, what, mark.problem)
            # It may be there or not. Should the log go on to sync, it is made again.
            self._is_marked_synced = False
            return
        self._is_marked_synced = mark.is_made
        if not mark.is_made and self._next_config is not None:
            self._take_config(self._next_config, may_be_marked=False)

    def flush_failed(self, plan: FlushPlan, error: StorageError) -> None:
        self._flush.flush_failed(plan, error, self._epochs)
        logger.error("%s: sync failed, no appends until one goes through: %s", self.topic_partition, error)

    def flush(self) -> None:
        """All of it here and now, on the calling thread; StorageError when the disk refuses."""
        self._run(self.flush_plan())

    def _run(self, plan: FlushPlan | None) -> None:
        if plan is None:
            return
        try:
            plan.run()
        except StorageError as error:
            self.flush_failed(plan, error)
            raise
        self.flushed(plan)

    def closing_plan(self) -> FlushPlan | None:
        """A plan after which a clean start has nothing to look for in the log; None when nothing has changed.

        Before the log is closed, and after it was opened. No other plan may be under way. StorageError when there is
        no room for what has to be written first.
        """
        for segment in self._unfinished:
            segment.finish_indexes()
            self._flush.indexes_written(segment)
        self._unfinished = []
        if self._active is not None and not (self._is_settled and self.log_end_offset == self._snapshots.newest):
            self._active.finish_indexes()
            self._snapshots.write(self.producers, self.log_end_offset, self._active, self._flush)
            self._flush.indexes_written(self._active)
        self._is_settled = True
        return self.flush_plan()

    def settle(self) -> None:
        """Makes what was found on disk durable before the log is used, on the calling thread.

        Where the disk refuses, the log can be read and takes no appends, until a later flush goes through.
        """
        try:
            self.flush()
        except StorageError as error:
            self._flush.failure = str(error)
        self._take_config(self.config, may_be_marked=self._is_marked_synced)

    def close(self) -> None:
        """Runs the closing plan on the calling thread; StorageError when the disk refuses."""
        self._run(self.closing_plan())
        self.release()

    def moved_to(self, path: str) -> None:
        """The directory has another name: whoever is being sent a segment goes on there, not in a later topic's."""
        self.path = path
        for segment in self._segments:
            segment.file.path = os.path.join(path, os.path.basename(segment.file.path))

    def release(self) -> None:
        """Gives the descriptors back."""
        for segment in self._segments:
            segment.close()
