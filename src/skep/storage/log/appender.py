"""Appends to a log as its leader: one checked batch at a time, which gets its offsets here.

What a follower appends is in ``replica_appender.py``.
"""

from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import LeaderEpoch, Offset
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
from skep.storage.log import timestamps
from skep.storage.log.log_state import LogState
from skep.storage.segment.segment import Segment


class Appended(NamedTuple):
    """The result of an append, which becomes the partition's part of a Produce response."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: int
    """-1 for CreateTime."""
    log_start_offset: Offset
    is_duplicate: bool


class Appender:
    """Writes batches at the log end and notes each in the log's state."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        marker: EndTxnMarker | None = None,
    ) -> Appended:
        """Writes a batch that ``check_produced`` has accepted, in one write. ``marker`` is what a control batch holds.

        A duplicate of one of the producer's last five batches gets the same response as the first copy and is not
        written. The first copy may not be committed yet, so the response to a duplicate waits for ``last_offset`` too.
        """
        state = self._state
        if state.flush.failure is not None:
            raise StorageError(state.flush.failure)
        config = state.config
        is_append_time = config.message_timestamp_type == "LogAppendTime"
        _, batch_length, _, _, _, _, last_offset_delta, _, timestamp, producer_id, _, _, _ = header
        append_time_ms = -1
        if producer_id >= 0 and marker is None and (first := state.producers.check(header)) is not None:
            append_time_ms = first.timestamp if is_append_time else -1
            return Appended(first.base_offset, first.last_offset, append_time_ms, state.log_start_offset, True)
        if is_append_time:
            batch = with_append_time(batch, header, now_ms)
            timestamp = append_time_ms = now_ms
        else:
            timestamps.check_create_time(header, config, now_ms)
        size = batch_length + LENGTH_END
        if size > config.segment_bytes and marker is None:
            detail = f"the batch has {size} bytes, segment.bytes is {config.segment_bytes}"
            raise KafkaError(ErrorCode.record_list_too_large, detail)
        base_offset = state.log_end_offset
        # Here and in ``written`` the sums are not passed to Offset: each call takes 60 ns of the path of every Produce.
        last_offset: Offset = base_offset + last_offset_delta  # type: ignore[assignment]
        segment = state.active
        if segment is None or segment.must_roll(segment.file.size, size, last_offset, timestamp, now_ms, config):
            segment = state.roll(now_ms)
        file = segment.file
        position = file.size
        file.append((prefix_for(base_offset, batch_length, leader_epoch), memoryview(batch)[PREFIX_SIZE:]))
        self.written(segment, position, base_offset, last_offset, timestamp, leader_epoch, header, marker, now_ms)
        # As calling the class does, in half the time: every Produce request takes this path.
        return tuple.__new__(Appended, (base_offset, last_offset, append_time_ms, state.log_start_offset, False))

    def written(
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
        """Notes a batch that was just written at the end of ``segment``.

        A leader changes fields of the header when it writes the batch; those have parameters of their own here, and
        what ``header`` says of them is ignored.

        There is no await, and nothing that can fail, between the write and the last of these changes: a producer's
        retry must find the batch both in the log and among its last five, or in neither.
        """
        state = self._state
        flush, size = state.flush, header.batch_length + LENGTH_END
        segment.count(position, size, last_offset, timestamp, state.config.index_interval_bytes)
        state.log_end_offset = last_offset + 1  # type: ignore[assignment]
        if leader_epoch != state.epochs.latest:
            state.epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            if marker is not None:
                aborted = state.producers.record_marker(header, marker, base_offset, now_ms)
                if aborted is not None:
                    segment.transaction_index.add(aborted)
                    state.has_aborted = True
                    flush.abort_written(segment)
            elif not header.attributes & CONTROL_FLAG:
                state.producers.record(header, base_offset, now_ms)
        if flush.unflushed_since_ms is None:
            flush.unflushed_since_ms = now_ms
        state.places.remember(base_offset, position)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        *,
        raises_epoch: bool = False,
    ) -> Appended:
        """Ends the producer's transaction. ``raises_epoch``: it was of v2, so the marker has the next epoch.

        A producer without a transaction gets a marker too, because it may raise the producer's epoch. Raises
        INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED for an epoch that was replaced.
        """
        self._state.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, raises_epoch=raises_epoch)
        marker = EndTxnMarker(committed, coordinator_epoch)
        batch = build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        return self.append(batch, read_header(batch), leader_epoch, now_ms, marker)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Notes that this broker leads in ``epoch`` from the log end on, whether or not anything is appended.

        OffsetForLeaderEpoch then tells a follower where the epoch before ended. The next flush makes it durable; a
        restart forgets an epoch without batches.
        """
        if epoch > self._state.epochs.latest:
            self._state.epochs.assign(epoch, self._state.log_end_offset)

    def roll_if_due(self, now_ms: int) -> bool:
        """Rolls the active segment when it was created, or opened, ``segment.ms`` ago; returns whether it did.

        For logs that nobody appends to. The age is counted by the clock: by the time of old records, as an append
        counts it, every check would roll a segment.
        """
        state = self._state
        segment = state.active
        if state.is_being_cut or segment is None or not segment.size:
            return False
        if now_ms - segment.created_ms <= state.config.roll_ms - segment.jitter_ms:
            return False
        state.roll(now_ms)
        return True
