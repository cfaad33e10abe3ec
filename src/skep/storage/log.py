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
that raises has changed nothing. How what is written becomes durable is in ``durable_log.py``.
"""

import os
import random
import uuid
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.files import Files
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.base.topic_config import TopicConfig
from skep.records.batch import LENGTH_END, PREFIX_SIZE, BatchHeader, prefix_for, read_header, with_append_time
from skep.records.end_txn_marker import EndTxnMarker, build_marker
from skep.storage import timestamps
from skep.storage.compaction_swap import SegmentSwap
from skep.storage.content import LogContent
from skep.storage.durable_log import DurableLog
from skep.storage.names import PARTITION_METADATA, encode_partition_metadata
from skep.storage.reading import LogSlice, Places, find_slice
from skep.storage.removal import SegmentRemoval
from skep.storage.segment import Segment
from skep.storage.timestamps import TimestampOffset
from skep.storage.transaction_index import aborted_between
from skep.storage.transactions import AbortedTransaction


class Appended(NamedTuple):
    base_offset: Offset
    last_offset: Offset
    append_time_ms: int
    """-1 for CreateTime."""
    log_start_offset: Offset
    is_duplicate: bool


class Log(DurableLog):
    """Owns the partition's directory and all that is in it. The directory is made by the first append."""

    __slots__ = ("_has_aborted", "_places", "_prepare", "topic_id")

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
        super().__init__(files, path, topic_partition, config, content)
        self.topic_id = topic_id
        self._prepare = prepare
        self._has_aborted = any(segment.transaction_index.count for segment in content.segments)
        self._places = Places()

    # Appending

    def append(
        self,
        batch: bytes,
        header: BatchHeader,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        marker: EndTxnMarker | None = None,
    ) -> Appended:
        """Writes a batch that ``check_produced`` has passed, at the end of the log, in one write.

        A duplicate of one of the producer's last five batches is answered as the first time and not written. It may
        not be flushed yet: whoever waits for that waits for ``last_offset`` in both cases. ``marker`` is what
        ``append_marker`` has put into the batch.
        """
        if self._flush.failure is not None:
            raise StorageError(self._flush.failure)
        config = self.config
        is_idempotent = header.producer_id >= 0
        timestamp = header.max_timestamp
        append_time_ms = -1
        if is_idempotent and marker is None and (first := self.producers.check(header)) is not None:
            append_time_ms = first.timestamp if config.message_timestamp_type == "LogAppendTime" else -1
            return Appended(first.base_offset, first.last_offset, append_time_ms, self.log_start_offset, True)
        if config.message_timestamp_type == "LogAppendTime":
            batch = with_append_time(batch, header, now_ms)
            timestamp = append_time_ms = now_ms
        else:
            timestamps.check_create_time(header, config, now_ms)
        size = header.batch_length + LENGTH_END
        if size > config.segment_bytes and marker is None:
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
            if marker is None:
                self.producers.record(header, base_offset, now_ms)
            elif (aborted := self.producers.record_marker(header, marker, base_offset, now_ms)) is not None:
                segment.transaction_index.add(aborted)
                self._has_aborted = True
                self._flush.abort_written(segment)
        if self._flush.unflushed_since_ms is None:
            self._flush.unflushed_since_ms = now_ms
        self._places.remember(base_offset, position)
        return Appended(base_offset, last_offset, append_time_ms, self.log_start_offset, False)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> Appended:
        """Ends the producer's transaction. A producer that has begun none gets its marker too: it may raise the epoch.

        INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED refuse those that have been replaced.
        """
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        marker = EndTxnMarker(committed, coordinator_epoch)
        batch = build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        return self.append(batch, read_header(batch), leader_epoch, now_ms, marker)

    def roll_if_due(self, now_ms: int) -> bool:
        """Begins a new segment when the active one was begun, or opened, ``segment.ms`` ago, though nobody appends."""
        segment = self._active
        # By the clock: old records, by whose time an append rolls, would get a segment at every check.
        if not (segment and segment.size and now_ms - segment.created_ms > self.config.roll_ms - segment.jitter_ms):
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
            self._snapshots.write(self.producers, base_offset, self._active, self._flush)
        segment = Segment.open(self._files, self.path, base_offset, now_ms, create=True)
        if segment.size:
            raise StorageError(f"{segment.file.path}: a new segment cannot be begun, the file has content")
        segment.jitter_ms = random.randint(0, min(self.config.segment_jitter_ms, self.config.roll_ms))
        if self._active is not None:
            self._active.close_indexes()
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

    @property
    def first_unstable_offset(self) -> Offset | None:
        """Where the oldest undecided transaction begins, or what is left of it; None when there is none."""
        offset = self.producers.transactions.first_unstable_offset
        return offset if offset is None or offset >= self.log_start_offset else self.log_start_offset

    def aborted_transactions(self, offset: Offset, end: Offset) -> list[AbortedTransaction]:
        """Those with records in [``offset``, ``end``), all of which is decided."""
        if not self._has_aborted:
            return []
        number = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1
        return aborted_between((s.transaction_index for s in self._segments[max(number, 0) :]), offset, end)

    def offset_for_timestamp(self, timestamp_ms: int, *, up_to: Offset) -> TimestampOffset | None:
        """The first record at or after the time; None when there is none before ``up_to``. In any thread."""
        return timestamps.first_at_or_after(self._segments, timestamp_ms, self.log_start_offset, up_to)

    def latest_timestamp(self, *, up_to: Offset) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all before ``up_to``. In any thread."""
        return timestamps.largest(self._segments, self.log_start_offset, up_to)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Where ``epoch`` ended, for OffsetForLeaderEpoch; see ``LeaderEpochs.end_offset_for``."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

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

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> SegmentSwap:
        """Reads from compacted segments from now on, instead of the sealed and synced ones they were made from.

        Offsets stay what they are; where batches lie changes.
        """
        first = self._segments.index(old[0])
        end = first + len(old)
        assert self._segments[first:end] == list(old) and end < len(self._segments), "only sealed neighbours"
        assert self._segments[end].base_offset <= self.flushed_offset, "only what is synced"
        self._segments = [*self._segments[:first], *new, *self._segments[end:]]
        self._places = Places()
        gone = {segment.base_offset for segment in old} - {segment.base_offset for segment in new}
        return SegmentSwap(self._files, self.path, list(old), list(new), sorted(gone - {self._snapshots.newest}))

    def expire_producers(self, before_ms: int) -> None:
        """Forgets idempotent producers that have not written since ``before_ms``."""
        self.producers.expire(before_ms)
