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
that raises has changed nothing. How what is written becomes durable is in ``durable_log.py``, appending in
``appending.py``, and what only a follower does in ``replica_log.py``. Here are reading and deleting.
"""

import contextlib
import uuid
from bisect import bisect_right
from collections.abc import Sequence

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.files.files import Files
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.storage.keeper import Keeper
from skep.storage.log import timestamps
from skep.storage.log.appender import Appended
from skep.storage.log.log_content import LogContent
from skep.storage.log.log_slice import LogSlice, Places, find_slice, prepare_slice
from skep.storage.log.segment_removal import SegmentRemoval
from skep.storage.log.segment_swap import SegmentSwap
from skep.storage.log.timestamps import IsGivenUp, TimestampOffset
from skep.storage.producers.open_transactions import AbortedTransaction
from skep.storage.replica_log import ReplicaLog
from skep.storage.segment.segment import Segment
from skep.storage.segment.transaction_index import aborted_between

__all__ = ["Appended", "Log"]

_NO_KEEPER = Keeper()


class Log(ReplicaLog):
    """The whole of it. ``lost_data`` says that records are missing which were there once, and that no crash of the
    process alone can have taken: this copy may be no leader before it has caught up with one."""

    __slots__ = ("lost_data",)

    def __init__(
        self,
        files: Files,
        path: str,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicConfig,
        content: LogContent,
        keeper: Keeper = _NO_KEEPER,
    ) -> None:
        super().__init__(files, path, topic_partition, topic_id, config, content, keeper)
        self.lost_data = content.lost_data

    # Reading

    def read(self, offset: Offset, max_bytes: int, *, up_to: Offset, at_least_one: bool) -> LogSlice:
        """Where the whole batches lie that begin with the one that contains ``offset``, in one segment.

        Nothing at or past ``up_to`` is given, and no more than ``max_bytes``; a first batch that is larger is given
        alone if ``at_least_one``. The slice may end earlier than it could. Reads indexes and headers, from the page
        cache as a rule; the bytes themselves are the caller's to send or to read, in a thread if they may be cold.
        """
        if self.is_being_cut:
            self._check_not_being_cut()
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

    def prepare(self, offset: Offset, max_bytes: int) -> None:
        """The next ``read`` will be this one, as far as one can tell; what it needs is looked up now."""
        if self.log_start_offset <= offset < self.log_end_offset and not self.is_being_cut:
            with contextlib.suppress(StorageError):  # who reads it will be told
                prepare_slice(self._segments, self._places, offset, max_bytes)

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

    def offset_for_timestamp(
        self, timestamp_ms: int, *, up_to: Offset, is_given_up: IsGivenUp = timestamps.never
    ) -> TimestampOffset | None:
        """The first record at or after the time; None when there is none before ``up_to``. In any thread.

        Raises SearchGivenUp soon after ``is_given_up`` returns true.
        """
        return timestamps.first_at_or_after(
            self._segments, timestamp_ms, self.log_start_offset, up_to, is_given_up=is_given_up
        )

    def latest_timestamp(self, *, up_to: Offset, is_given_up: IsGivenUp = timestamps.never) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all before ``up_to``. Otherwise as the one above."""
        return timestamps.largest(self._segments, self.log_start_offset, up_to, is_given_up=is_given_up)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Where ``epoch`` ended, for OffsetForLeaderEpoch; see ``LeaderEpochs.end_offset_for``."""
        known, end = self._epochs.end_offset_for(epoch, self.log_end_offset)
        return known, max(end, self.log_start_offset) if known >= 0 else end

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

    def move_start_to(self, offset: Offset) -> Offset:
        """Follows the leader's log start, also past the end of what there is; says where the log starts now."""
        if offset > self.log_end_offset:
            self.start_anew_at(offset)
        else:
            self._move_start(offset)
        return self.log_start_offset

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
