"""Appending to a log as its leader: one checked batch at a time, which gets its offsets here.

What a follower appends, and takes back, is in ``replica_log.py``.
"""

import os
import random
import uuid
from typing import NamedTuple

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.files.files import Files
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import (
    CONTROL_FLAG,
    LENGTH_END,
    PREFIX_SIZE,
    BatchHeader,
    Buffer,
    prefix_for,
    read_header,
    with_append_time,
)
from skep.records.end_txn_marker import EndTxnMarker, build_marker
from skep.storage.file_names import PARTITION_METADATA, SYNCED, encode_partition_metadata
from skep.storage.keeper import Keeper
from skep.storage.log import timestamps
from skep.storage.log.flusher import DurableLog
from skep.storage.log.log_content import LogContent
from skep.storage.log.log_slice import Places
from skep.storage.segment.segment import Segment


class Appended(NamedTuple):
    base_offset: Offset
    last_offset: Offset
    append_time_ms: int
    """-1 for CreateTime."""
    log_start_offset: Offset
    is_duplicate: bool


class AppendableLog(DurableLog):
    """Owns the partition's directory and all that is in it. The directory is made by the first append."""

    __slots__ = ("_has_aborted", "_keeper", "_places", "topic_id")

    def __init__(
        self,
        files: Files,
        path: str,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicConfig,
        content: LogContent,
        keeper: Keeper,
    ) -> None:
        super().__init__(files, path, topic_partition, config, content)
        self.topic_id = topic_id
        self._keeper = keeper
        self._has_aborted = any(segment.transaction_index.count for segment in content.segments)
        self._places = Places()

    def append(
        self,
        batch: Buffer,
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
        is_append_time = config.message_timestamp_type == "LogAppendTime"
        _, batch_length, _, _, _, _, last_offset_delta, _, timestamp, producer_id, _, _, _ = header
        append_time_ms = -1
        if producer_id >= 0 and marker is None and (first := self.producers.check(header)) is not None:
            append_time_ms = first.timestamp if is_append_time else -1
            return Appended(first.base_offset, first.last_offset, append_time_ms, self.log_start_offset, True)
        if is_append_time:
            batch = with_append_time(batch, header, now_ms)
            timestamp = append_time_ms = now_ms
        else:
            timestamps.check_create_time(header, config, now_ms)
        size = batch_length + LENGTH_END
        if size > config.segment_bytes and marker is None:
            detail = f"the batch has {size} bytes, segment.bytes is {config.segment_bytes}"
            raise KafkaError(ErrorCode.record_list_too_large, detail)
        base_offset = self.log_end_offset
        last_offset = Offset(base_offset + last_offset_delta)
        segment = self._active
        if segment is None or segment.must_roll(segment.file.size, size, last_offset, timestamp, now_ms, config):
            segment = self._roll(now_ms)
        file = segment.file
        position = file.size
        file.append((prefix_for(base_offset, batch_length, leader_epoch), memoryview(batch)[PREFIX_SIZE:]))
        self._written(segment, position, base_offset, last_offset, timestamp, leader_epoch, header, marker, now_ms)
        # As calling the class does, in half the time: this is the path of every produce.
        return tuple.__new__(Appended, (base_offset, last_offset, append_time_ms, self.log_start_offset, False))

    def _written(
        self,
        segment: Segment,
        position: int,
        base_offset: Offset,
        last_offset: Offset,
        timestamp: int,
        leader_epoch: LeaderEpoch,
        header: BatchHeader,
        marker: EndTxnMarker | None,
        now_ms: int,
    ) -> None:
        """Takes note of a batch that was just written to the end of ``segment``; of its header, only what has no
        parameter of its own counts, for a leader does not write that part as it came.

        No await, and nothing that can fail, between the write and the last of these changes: a producer's retry must
        find the batch both in the log and among its last five, or in neither.
        """
        flush, size = self._flush, header.batch_length + LENGTH_END
        segment.count(position, size, last_offset, timestamp, self.config.index_interval_bytes)
        self.log_end_offset = Offset(last_offset + 1)
        if leader_epoch != self._epochs.latest:
            self._epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            if marker is not None:
                aborted = self.producers.record_marker(header, marker, base_offset, now_ms)
                if aborted is not None:
                    segment.transaction_index.add(aborted)
                    self._has_aborted = True
                    flush.abort_written(segment)
            elif not header.attributes & CONTROL_FLAG:
                self.producers.record(header, base_offset, now_ms)
        if flush.unflushed_since_ms is None:
            flush.unflushed_since_ms = now_ms
        self._places.remember(base_offset, position)

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

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """This broker leads in ``epoch`` from the log's end on, whether or not anything is appended: a follower that
        asks where an earlier epoch ended is to be told so. Durable with the next flush; a start forgets an epoch
        without batches."""
        if epoch > self._epochs.latest:
            self._epochs.assign(epoch, self.log_end_offset)

    def roll_if_due(self, now_ms: int) -> bool:
        """Begins a new segment when the active one was begun, or opened, ``segment.ms`` ago, though nobody appends."""
        segment = self._active
        # By the clock: old records, by whose time an append rolls, would get a segment at every check.
        if self.is_being_cut:
            return False
        if not (segment and segment.size and now_ms - segment.created_ms > self.config.roll_ms - segment.jitter_ms):
            return False
        self._roll(now_ms)
        return True

    def _roll(self, now_ms: int) -> Segment:
        """Seals the active segment and begins the next. Each step may be done again after a StorageError in a later."""
        base_offset = self.log_end_offset
        if self._active is None:
            self._keeper.before_creation()
            self._files.make_directory(self.path)
            metadata = encode_partition_metadata(self.topic_id)
            self._files.write_atomically(os.path.join(self.path, PARTITION_METADATA), metadata, sync=False)
            if self.config.syncs_before_acknowledging:
                # The first flush makes it durable, before the first acknowledgement.
                self._files.open(os.path.join(self.path, SYNCED), create=True)
                self._is_marked_synced = True
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
