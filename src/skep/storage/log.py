"""The log of one partition: batches at consecutive offsets, in segments.

Marks, in order; each is an offset, and says what happened to the bytes below it::

    log_start_offset <= flushed_offset <= log_end_offset

    log_start_offset   below: deleted, or allowed to be
    flushed_offset     below: on the disk, with everything that recovery needs (Kafka's recovery point)
    log_end_offset     below: written; the next batch begins here

The high watermark lies between the last two and is the caller's, who knows of replicas; ``read`` is told it.

Example, three segments whose batches hold these offsets, and DeleteRecords up to 15 has been served::

    00000000000000000000.log  [0,9][10,19]      log_start_offset 15: inside a batch, whose first half is still sent
    00000000000000000020.log  [20,49][50,50]    to readers, because a batch is never taken apart
    00000000000000000051.log  [51,70]           log_end_offset 71

Everything here is synchronous and runs on the event loop's thread, except where a docstring says otherwise. A method
that raises has changed nothing.
"""

import logging
import os
import random
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.files import Files
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.base.topic_config import TopicConfig
from skep.records.batch import LENGTH_END, PREFIX_SIZE, BatchHeader, prefix_for, with_append_time
from skep.storage import timestamps
from skep.storage.content import LogContent
from skep.storage.flush import FlushPlan, FlushState
from skep.storage.names import PARTITION_METADATA, encode_partition_metadata
from skep.storage.reading import LogSlice, Places, find_slice
from skep.storage.removal import SegmentRemoval
from skep.storage.segment import Segment
from skep.storage.snapshots import ProducerSnapshots
from skep.storage.timestamps import TimestampOffset

logger = logging.getLogger(__name__)


class Appended(NamedTuple):
    base_offset: Offset
    last_offset: Offset
    append_time_ms: int
    """-1 for CreateTime."""
    log_start_offset: Offset
    is_duplicate: bool


class Log:
    """Owns the partition's directory and all that is in it. The directory is made by the first append."""

    __slots__ = (
        "_active",
        "_epochs",
        "_files",
        "_flush",
        "_is_settled",
        "_places",
        "_prepare",
        "_producers",
        "_segments",
        "_snapshots",
        "_unfinished",
        "config",
        "log_end_offset",
        "log_start_offset",
        "path",
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
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """``prepare`` runs before the partition's directory is made; a StorageError from it refuses the append."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.path = path
        self.log_start_offset = content.log_start_offset
        self.log_end_offset = content.log_end_offset
        self._files = files
        self._prepare = prepare
        # Replaced, never changed in place: a thread that walks over it keeps the list it began with.
        self._segments = content.segments
        self._active: Segment | None = content.segments[-1] if content.segments else None
        self._epochs = content.leader_epochs
        self._producers = content.producers
        self._snapshots = ProducerSnapshots(
            files, path, content.snapshot_offset, content.segments, content.log_end_offset
        )
        self._unfinished = content.new_indexes
        self._is_settled = not content.is_recovered and not content.new_indexes
        self._flush = FlushState(content.flushed_offset)
        self._places = Places()
        self._check_marks()

    def _check_marks(self) -> None:
        assert self.log_start_offset <= self.log_end_offset, f"{self.topic_partition}: log start is past the end"
        assert self.flushed_offset <= self.log_end_offset, f"{self.topic_partition}: flushed past the end"

    @property
    def size(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last one is the active one. Not to be changed."""
        return self._segments

    # Appending

    def append(self, batch: bytes, header: BatchHeader, leader_epoch: LeaderEpoch, now_ms: int) -> Appended:
        """Writes a batch that ``check_produced`` has passed, at the end of the log, in one write.

        A duplicate of one of the producer's last five batches is answered as the first time and not written. It may
        not be flushed yet: whoever waits for that waits for ``last_offset`` in both cases.
        """
        if self._flush.failure is not None:
            raise StorageError(self._flush.failure)
        config = self.config
        is_idempotent = header.producer_id >= 0
        timestamp = header.max_timestamp
        append_time_ms = -1
        if is_idempotent and (first := self._producers.check(header)) is not None:
            append_time_ms = first.timestamp if config.message_timestamp_type == "LogAppendTime" else -1
            return Appended(first.base_offset, first.last_offset, append_time_ms, self.log_start_offset, True)
        if config.message_timestamp_type == "LogAppendTime":
            batch = with_append_time(batch, header, now_ms)
            timestamp = append_time_ms = now_ms
        else:
            timestamps.check_create_time(header, config, now_ms)
        size = header.batch_length + LENGTH_END
        if size > config.segment_bytes:
            detail = f"the batch has {size} bytes, segment.bytes is {config.segment_bytes}"
            raise KafkaError(ErrorCode.record_list_too_large, detail)
        base_offset = self.log_end_offset
        last_offset = Offset(base_offset + header.last_offset_delta)
        segment = self._active
        if segment is None or segment.must_roll(size, last_offset, timestamp, now_ms, config):
            segment = self._roll(now_ms)
        position = segment.file.size
        # No await, and nothing that can fail, between the write and the last of the changes below: a producer's retry
        # must find the batch both in the log and among its last five, or in neither.
        segment.file.append(
            (prefix_for(base_offset, header.batch_length, leader_epoch), memoryview(batch)[PREFIX_SIZE:])
        )
        segment.count(position, size, last_offset, timestamp, config.index_interval_bytes)
        self.log_end_offset = Offset(last_offset + 1)
        if leader_epoch != self._epochs.latest:
            self._epochs.assign(leader_epoch, base_offset)
        if is_idempotent:
            self._producers.record(header, base_offset, now_ms)
        if self._flush.unflushed_since_ms is None:
            self._flush.unflushed_since_ms = now_ms
        self._places.remember(base_offset, position)
        return Appended(base_offset, last_offset, append_time_ms, self.log_start_offset, False)

    def roll_if_due(self, now_ms: int) -> bool:
        """Begins a new segment when the active one was begun, or opened, ``segment.ms`` ago, though nobody appends."""
        segment = self._active
        # By the clock: old records, by whose time an append rolls, would get a segment at every check.
        if not (segment and segment.size and now_ms - segment.created_ms > self.config.segment_ms - segment.jitter_ms):
            return False
        self._roll(now_ms)
        return True

    def _roll(self, now_ms: int) -> Segment:
        """Seals the active segment and begins the next. Each step may be done again after a StorageError in a later."""
        base_offset = self.log_end_offset
        if self._active is None:
            self._prepare()
            self._files.make_directory(self.path)
            metadata = encode_partition_metadata(self.topic_id)
            self._files.write_atomically(os.path.join(self.path, PARTITION_METADATA), metadata, sync=False)
        else:
            self._active.finish_indexes()
            self._snapshots.write(self._producers, base_offset, self._active, self._flush)
        segment = Segment.open(self._files, self.path, base_offset, now_ms, create=True)
        if segment.size:
            raise StorageError(f"{segment.file.path}: a new segment cannot be begun, the file has content")
        segment.jitter_ms = random.randint(0, min(self.config.segment_jitter_ms, self.config.segment_ms))
        if self._active is not None:
            self._active.offset_index.close()
            self._active.time_index.close()
            self._flush.indexes_written(self._active)
        self._flush.segment_begun(is_first=self._active is None)
        self._segments = [*self._segments, segment]
        self._active = segment
        self._snapshots.segment_begun()
        return segment

    # Reading

    def read(self, offset: Offset, max_bytes: int, *, up_to: Offset, at_least_one: bool) -> LogSlice:
        """Where the whole batches lie that begin with the one that contains ``offset``, in one segment.

        Nothing at or past ``up_to`` is given, and no more than ``max_bytes``; a first batch that is larger is given
        alone if ``at_least_one``. The slice may end earlier than it could. Reads indexes and headers, from the page
        cache as a rule; the bytes themselves are the caller's to send or to read, in a thread if they may be cold.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not within {self.log_start_offset} to {self.log_end_offset}",
            )
        return find_slice(
            self._segments,
            self._places,
            offset,
            max_bytes,
            up_to=up_to,
            log_end_offset=self.log_end_offset,
            at_least_one=at_least_one,
        )

    def offset_for_timestamp(self, timestamp_ms: int, *, up_to: Offset) -> TimestampOffset | None:
        """The first record at or after the time; None when there is none before ``up_to``. In any thread."""
        return timestamps.first_at_or_after(self._segments, timestamp_ms, self.log_start_offset, up_to)

    def latest_timestamp(self, *, up_to: Offset) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all before ``up_to``. In any thread."""
        return timestamps.largest(self._segments, self.log_start_offset, up_to)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Where ``epoch`` ended, for OffsetForLeaderEpoch; see ``LeaderEpochs.end_offset_for``."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    # Flushing; flush.py says how the four calls go together

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
    def is_flushing(self) -> bool:
        return self._flush.is_flushing

    def flush_is_due(self, now_ms: int) -> bool:
        """By ``flush.messages``, by ``flush.ms``, because a sealed segment waits for it, or to heal a failed sync."""
        state, config = self._flush, self.config
        if state.is_flushing:
            return False
        if state.failure is not None or self.unflushed_records >= config.flush_messages:
            return True
        if state.unflushed_since_ms is not None and now_ms - state.unflushed_since_ms >= config.flush_ms:
            return True
        return self._active is not None and state.flushed_offset < self._active.base_offset

    def flush_plan(self) -> FlushPlan | None:
        """What to sync now; None when there is nothing, or a plan is under way: ask again when that is done."""
        if self.is_flushing:
            return None
        if not self._is_settled:
            return self.closing_plan()
        if self._active is not None and self._snapshots.is_due(self._active):
            try:
                self._snapshots.write(self._producers, self.log_end_offset, self._active, self._flush)
            except StorageError as error:
                logger.warning("%s: no snapshot of the producers: %s", self.topic_partition, error)
        return self._flush.plan(self._files, self.path, self._segments, self.log_end_offset, self._epochs)

    def flushed(self, plan: FlushPlan) -> None:
        self._flush.flushed(plan)
        self._check_marks()

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

    # Deleting

    def delete_records_before(self, offset: Offset) -> Offset:
        """Moves the log start to ``offset`` (DeleteRecords) and says where it is now; it never goes back.

        Whole segments below it are found by ``retention.segments_to_delete`` the next time; until the directory's
        checkpoints are written, a crash may bring the old log start back.
        """
        if offset > self.log_end_offset:
            raise KafkaError(ErrorCode.offset_out_of_range, f"offset {offset} is past the end, {self.log_end_offset}")
        self._move_start(offset)
        return self.log_start_offset

    def _move_start(self, offset: Offset) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._epochs.truncate_start(offset)
            self._check_marks()

    def detach(self, segments: Sequence[Segment], now_ms: int) -> SegmentRemoval:
        """Lets go of the oldest segments, as ``retention.segments_to_delete`` chose them; the log start moves.

        When the active one is among them a new one is begun first, for its name alone keeps the end offset.
        """
        if not segments:
            return SegmentRemoval(self._files, self.path, [])
        assert list(segments) == self._segments[: len(segments)], "only the oldest segments can go"
        if segments[-1] is self._active:
            self._roll(now_ms)
        self._segments = self._segments[len(segments) :]
        self._unfinished = [segment for segment in self._unfinished if segment in self._segments]
        self._move_start(self._segments[0].base_offset)
        self._flush.detached(self._segments[0].base_offset)
        return SegmentRemoval(self._files, self.path, list(segments))

    def expire_producers(self, before_ms: int) -> None:
        """Forgets idempotent producers that have not written since ``before_ms``."""
        self._producers.expire(before_ms)

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
            self._snapshots.write(self._producers, self.log_end_offset, self._active, self._flush)
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
