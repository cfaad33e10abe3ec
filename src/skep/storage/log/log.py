"""The log of one partition: batches at consecutive offsets, in segments.

Offsets that mark the log, in order; each says what happened to the bytes below it::

    log_start_offset <= flushed_offset <= log_end_offset

    log_start_offset   below: deleted, or allowed to be
    flushed_offset     below: on the disk, with everything that recovery needs (Kafka's recovery point)
    log_end_offset     below: written; the next batch begins here

The high watermark is between the last two. It belongs to the caller, which knows the replicas, and is passed to
``read``.

Example: three segments whose batches hold these offsets, after DeleteRecords up to 15::

    00000000000000000000.log  [0,9][10,19]      log_start_offset 15 is inside a batch, which is still sent whole to
    00000000000000000020.log  [20,49][50,50]    readers, because a batch is never split
    00000000000000000051.log  [51,70]           log_end_offset 71

Everything here is synchronous and runs on the event loop's thread, except where a docstring says otherwise. A method
that raises has changed nothing, except ``append_replicated``, which keeps the batches before the bad one, and a
truncation that the disk interrupts (``is_half_cut``).

``Log`` is the front. Its state is a ``LogState`` (``log_state.py``), which it shares with ``Appender``,
``ReplicaAppender``, ``Truncator``, ``LogReader`` and ``Flusher``, each in a module of its own.
"""

import uuid
from collections.abc import Sequence

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.files.files import Files
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import BatchHeader, Buffer
from skep.storage.log import timestamps
from skep.storage.log.appender import Appended, Appender
from skep.storage.log.flush_state import FlushPlan
from skep.storage.log.flusher import Flusher
from skep.storage.log.log_content import LogContent
from skep.storage.log.log_reader import LogReader
from skep.storage.log.log_slice import LogSlice
from skep.storage.log.log_state import NO_CALLBACKS, DirectoryCallbacks, LogState
from skep.storage.log.replica_appender import ReplicaAppender
from skep.storage.log.segment_removal import SegmentRemoval
from skep.storage.log.segment_swap import SegmentSwap
from skep.storage.log.timestamps import IsGivenUp, TimestampOffset
from skep.storage.log.truncator import Truncator
from skep.storage.producers.producers import Producers
from skep.storage.segment.segment import Segment
from skep.storage.segment.transaction_index import AbortedTransaction

__all__ = ["Appended", "Log"]


class Log:
    """One partition's log. The first append creates its directory.

    ``state`` is public for reads on the path of every append, where a property costs 40 ns more.
    ``lost_data``: records are missing that a process crash cannot explain; the replica must not lead until it has
    caught up. ``truncator`` has the steps of a truncation, for callers that run one of them in a thread.
    """

    __slots__ = ("_appender", "_flusher", "_reader", "_replica_appender", "lost_data", "state", "truncator")

    def __init__(
        self,
        files: Files,
        path: str,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicConfig,
        content: LogContent,
        callbacks: DirectoryCallbacks = NO_CALLBACKS,
    ) -> None:
        state = LogState(files, path, topic_partition, topic_id, config, content, callbacks)
        self.state = state
        self._appender = Appender(state)
        self._reader = LogReader(state)
        self._flusher = Flusher(state)
        self.truncator = Truncator(state)
        self._replica_appender = ReplicaAppender(state, self._appender, self.truncator)
        self.lost_data = content.lost_data

    # The state, to read.

    @property
    def topic_partition(self) -> TopicPartition:
        return self.state.topic_partition

    @property
    def topic_id(self) -> uuid.UUID:
        return self.state.topic_id

    @property
    def path(self) -> str:
        return self.state.path

    @property
    def config(self) -> TopicConfig:
        """The config in use; see ``configure``."""
        return self.state.config

    @property
    def log_start_offset(self) -> Offset:
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self.state.log_end_offset

    @property
    def flushed_offset(self) -> Offset:
        return self.state.flush.flushed_offset

    @property
    def unflushed_records(self) -> int:
        return self.state.log_end_offset - self.state.flush.flushed_offset

    @property
    def first_unstable_offset(self) -> Offset | None:
        """Where the oldest undecided transaction begins, but not below the log start; None when there is none."""
        return self._reader.first_unstable_offset

    @property
    def producers(self) -> Producers:
        """Another object after a truncation."""
        return self.state.producers

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last one is the active one. Not to be changed."""
        return self.state.segments

    @property
    def size(self) -> int:
        """The size of all ``.log`` files in bytes."""
        return sum(segment.size for segment in self.state.segments)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The last leader epoch that the log knows; -1 when it knows none."""
        return self.state.epochs.latest

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last batch, which may be deleted; -1 when there never was one."""
        return self.state.epochs.epoch_before(self.state.log_end_offset)

    @property
    def was_synced(self) -> bool:
        """Whether everything that was acknowledged before the log was opened had been synced."""
        return self.state.mark.was_made

    @property
    def failure(self) -> str | None:
        """Why the log takes no appends: its last sync failed and no later one has succeeded."""
        return self.state.flush.failure

    @property
    def is_flushing(self) -> bool:
        return self.state.flush.is_flushing

    @property
    def is_half_cut(self) -> bool:
        """Whether the disk refused to end a truncation; ``truncate_to`` the log end repeats it."""
        return self.state.flush.is_half_cut

    @property
    def is_being_cut(self) -> bool:
        """Whether a thread truncates the log; every other use of it is refused with StorageError."""
        return self.state.is_being_cut

    @is_being_cut.setter
    def is_being_cut(self, is_being_cut: bool) -> None:
        self.state.is_being_cut = is_being_cut

    # Appending, as a leader and as a follower.

    def append(self, batch: Buffer, header: BatchHeader, leader_epoch: LeaderEpoch, now_ms: int) -> Appended:
        """Writes a batch at the log end and assigns its offsets; see ``Appender.append``."""
        return self._appender.append(batch, header, leader_epoch, now_ms)

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
        """Ends a producer's transaction; see ``Appender.append_marker``."""
        return self._appender.append_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            committed,
            leader_epoch,
            now_ms,
            raises_epoch=raises_epoch,
        )

    def append_replicated(self, records: bytes | memoryview, now_ms: int) -> int:
        """Appends the batches of a Fetch response; returns how many bytes. See ``ReplicaAppender.append``."""
        return self._replica_appender.append(records, now_ms)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Notes that this broker leads in ``epoch`` from the log end on; see ``Appender.begin_epoch``."""
        self._appender.begin_epoch(epoch)

    def roll_if_due(self, now_ms: int) -> bool:
        """Rolls an active segment that is older than ``segment.ms``; returns whether it did."""
        return self._appender.roll_if_due(now_ms)

    # Reading.

    def read(self, offset: Offset, max_bytes: int, *, up_to: Offset, at_least_one: bool) -> LogSlice:
        """Returns where the batches from ``offset`` on lie; see ``LogReader.read``."""
        return self._reader.read(offset, max_bytes, up_to=up_to, at_least_one=at_least_one)

    def remember(self, offset: int, position: int) -> None:
        """See ``LogReader.remember``."""
        self._reader.remember(offset, position)

    def prepare(self, offset: Offset, max_bytes: int) -> None:
        """Looks up what the next ``read`` is likely to need."""
        self._reader.prepare(offset, max_bytes)

    def aborted_transactions(self, offset: Offset, end: Offset) -> list[AbortedTransaction]:
        """Returns those with records in [``offset``, ``end``), where every transaction is decided."""
        return self._reader.aborted_transactions(offset, end)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, up_to: Offset, is_given_up: IsGivenUp = timestamps.never
    ) -> TimestampOffset | None:
        """Returns the first record at or after the time; see ``LogReader.offset_for_timestamp``. In any thread."""
        return self._reader.offset_for_timestamp(timestamp_ms, up_to=up_to, is_given_up=is_given_up)

    def latest_timestamp(self, *, up_to: Offset, is_given_up: IsGivenUp = timestamps.never) -> TimestampOffset | None:
        """Returns the first record with the largest timestamp below ``up_to``. In any thread."""
        return self._reader.latest_timestamp(up_to=up_to, is_given_up=is_given_up)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Returns where ``epoch`` ended; see ``LeaderEpochs.end_offset_for``."""
        return self._reader.end_offset_for_epoch(epoch)

    def divergence(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Returns where the history of a replica, whose last batch is of ``epoch``, leaves ours. See ``LogReader``."""
        return self._reader.divergence(epoch)

    # Truncating at the end, deleting at the start.

    def truncate_to(self, offset: Offset) -> Offset:
        """Removes all batches that end at or past ``offset``; returns the log end. See ``Truncator``."""
        return self.truncator.truncate_to(offset)

    def start_over_at(self, offset: Offset) -> None:
        """Removes everything: the log is empty, and starts and ends at ``offset``. See ``Truncator``."""
        self.truncator.start_over_at(offset)

    def delete_records_before(self, offset: Offset) -> Offset:
        """Moves the log start to ``offset`` (DeleteRecords) and returns where it is now; it never moves back.

        Whole segments below it are found by the next call of ``retention.segments_to_delete``. Until the checkpoints
        are written, a crash may bring the old log start back. Raises OFFSET_OUT_OF_RANGE past the log end.
        """
        state = self.state
        if offset > state.log_end_offset:
            raise KafkaError(ErrorCode.offset_out_of_range, f"offset {offset} is past the end, {state.log_end_offset}")
        state.move_start(offset)
        return state.log_start_offset

    def move_start_to(self, offset: Offset) -> Offset:
        """Follows the leader's log start, also past the log end; returns where the log starts now."""
        if offset > self.state.log_end_offset:
            self.truncator.start_over_at(offset)
        else:
            self.state.move_start(offset)
        return self.state.log_start_offset

    def detach(self, segments: Sequence[Segment], now_ms: int) -> SegmentRemoval:
        """Removes the oldest segments, which ``retention.segments_to_delete`` chose, from the log; the log start moves.

        When the active one is among them a new one is created first, because only its name keeps the end offset.
        """
        state = self.state
        if segments:
            assert list(segments) == state.segments[: len(segments)], "only the oldest segments can go"
            if segments[-1] is state.active:
                state.roll(now_ms)
            state.drop_oldest(len(segments))
        return SegmentRemoval(state.files, state.path, list(segments))

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> SegmentSwap:
        """Reads from compacted segments from now on, instead of the sealed and synced ones they were made from.

        Offsets stay the same; positions of batches change.
        """
        state = self.state
        state.replace_segments(old, new)
        gone = {segment.base_offset for segment in old} - {segment.base_offset for segment in new}
        return SegmentSwap(state.files, state.path, list(old), list(new), sorted(gone - {state.snapshots.newest}))

    def expire_producers(self, before_ms: int) -> None:
        """Forgets idempotent producers that have not written since ``before_ms``."""
        self.state.producers.expire(before_ms)

    # Flushing and closing.

    def configure(self, config: TopicConfig) -> None:
        """Replaces the config. One that no longer syncs before it acknowledges takes effect with the next flush."""
        self._flusher.configure(config)

    @property
    def is_config_waiting(self) -> bool:
        """Whether a flush is needed although everything is synced, before the config takes effect."""
        return self._flusher.is_config_waiting

    def flush_is_due(self, now_ms: int) -> bool:
        """Returns whether a flush is due; see ``Flusher.is_due``."""
        return self._flusher.is_due(now_ms)

    def flush_plan(self) -> FlushPlan | None:
        """Returns what to sync now; None when everything is durable or a plan is under way."""
        return self._flusher.plan()

    def closing_plan(self) -> FlushPlan | None:
        """Returns a plan after which a clean start has nothing to recover; see ``Flusher.closing_plan``."""
        return self._flusher.closing_plan()

    def flushed(self, plan: FlushPlan) -> None:
        """Moves the recovery point after ``plan.run`` has returned."""
        self._flusher.succeeded(plan)

    def flush_failed(self, plan: FlushPlan, error: StorageError) -> None:
        """Stops appends until a later flush succeeds, after ``plan.run`` has raised."""
        self._flusher.failed(plan, error)

    def flush(self) -> None:
        """Flushes on the calling thread. Raises StorageError when the disk refuses."""
        self._flusher.run(self._flusher.plan())

    def settle(self) -> None:
        """Makes what recovery found durable before the log is used; see ``Flusher.settle``."""
        self._flusher.settle()

    def close(self) -> None:
        """Runs the closing plan on the calling thread. Raises StorageError when the disk refuses."""
        self._flusher.run(self._flusher.closing_plan())
        self.release()

    def release(self) -> None:
        """Closes the files."""
        for segment in self.state.segments:
            segment.close()

    def moved_to(self, path: str) -> None:
        """Notes that the directory was renamed: responses under way read from there, not from a later topic's files."""
        self.state.path = path
        self.state.move_files_to(path)
