"""A log without files: a list of (leader epoch, value), one record a batch, and the real ``LeaderEpochs``.

It has as much of ``storage.Log`` as ``Partition`` and ``Fetcher`` ask for. Sizes are counted in records. ``synced`` of
them survive a power cut; in a topic that syncs before it acknowledges, a sync is over at once, and all of them do.

Records are deleted by moving the log start. A start finds the log start of the last checkpoint, and the records from
there on; the epochs of deleted records it has from the last sync.
"""

from types import SimpleNamespace
from typing import NamedTuple

from skep.base.config.topic_config import NEVER
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.storage.log.appender import Appended
from skep.storage.log.leader_epochs import LeaderEpochs
from tests.simulation.violation import Violation

Entry = tuple[int, int]
GONE = (-1, -1)
"""In the place of a record that this log never had: it began anew past it."""


class Held(NamedTuple):
    """What a log has: all of ``entries``, which begin at offset 0, from ``start`` on."""

    start: int
    entries: list[Entry]


class _NoTransactions:
    first_unstable_offset = None

    def high_watermark_moved(self, offset):
        pass


class ModelLog:
    """What a disk keeps of a partition; the process that opened it may go and another come."""

    failure = None
    is_config_waiting = False
    is_flushing = False
    is_being_cut = False
    lost_data = False

    def __init__(self, topic_partition: TopicPartition, min_insync_replicas: int, is_synced: bool) -> None:
        self.topic_partition = topic_partition
        self.entries: list[Entry] = []
        self.synced = self.log_start_offset = 0
        self.was_synced = is_synced
        self._epochs = LeaderEpochs()
        self._saved_start = 0
        self._saved_epochs = LeaderEpochs()
        self.producers = SimpleNamespace(transactions=_NoTransactions())
        self.config = SimpleNamespace(
            min_insync_replicas=min_insync_replicas,
            syncs_before_acknowledging=is_synced,
            flush_messages=1 if is_synced else NEVER,
            throttled_followers=(),
        )

    @property
    def state(self) -> "ModelLog":
        return self

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def flushed_offset(self) -> int:
        return self.synced

    @property
    def held(self) -> Held:
        return Held(self.log_start_offset, self.entries)

    def sync(self) -> None:
        self.synced = len(self.entries)
        self._saved_epochs = LeaderEpochs(self._epochs.entries)

    def checkpoint(self) -> None:
        self._saved_start = self.log_start_offset

    @property
    def unflushed_records(self) -> int:
        return len(self.entries) - self.synced

    @property
    def last_batch_epoch(self) -> int:
        return self._epochs.epoch_before(self.log_end_offset)

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        known, end = self._epochs.end_offset_for(epoch, len(self.entries))
        return known, max(end, self.log_start_offset) if known >= 0 else end

    def divergence(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_offset_for(epoch, len(self.entries))

    def begin_epoch(self, epoch: int) -> None:
        if epoch > self._epochs.latest:
            self._epochs.assign(epoch, len(self.entries))

    def append(self, batch: bytes, header: int, leader_epoch: int, now_ms: int) -> Appended:
        """``header`` is the value: a batch of the model has nothing else."""
        offset = len(self.entries)
        self._append((leader_epoch, header))
        return Appended(offset, offset, -1, 0, False)

    def append_replicated(self, records: list[Entry], now_ms: int) -> int:
        for entry in records:
            if entry[0] < self._epochs.latest:
                raise KafkaError(ErrorCode.corrupt_message, "an epoch goes back")
            self._append(entry)
        return len(records)

    def _append(self, entry: Entry) -> None:
        if self.entries and entry[0] < self.entries[-1][0]:
            raise Violation(f"{self.topic_partition}: {entry} is appended to {self.entries}: an epoch goes back")
        self._epochs.assign(entry[0], len(self.entries))
        self.entries.append(entry)
        if self.config.syncs_before_acknowledging:
            self.sync()

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> list[Entry]:
        if not self.log_start_offset <= offset <= len(self.entries):
            raise KafkaError(
                ErrorCode.offset_out_of_range, f"{offset} is not in {self.log_start_offset} to {len(self.entries)}"
            )
        return self.entries[offset : min(up_to, offset + max_bytes)]

    def truncate_to(self, offset: int) -> None:
        if offset < self.log_start_offset:
            raise AssertionError("a log that is cut before its start begins anew")
        del self.entries[offset:]
        self.synced = min(self.synced, len(self.entries))
        self._epochs.truncate_end(len(self.entries))

    def move_start_to(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._epochs.truncate_before(offset)

    def start_over_at(self, offset: int) -> None:
        """For good: the name of the new segment is taken to be on the disk at once."""
        self.entries = [GONE] * offset
        self.log_start_offset = offset
        self._epochs = LeaderEpochs()
        self.sync()
        self.checkpoint()

    def reopen(self, end: int) -> None:
        """As a start finds it: cut where the disk lost the rest, without epochs that have no batch; and synced.

        A log start past the end leaves nothing, and the log goes on there.
        """
        start = self.log_start_offset = self._saved_start
        survivors = self.entries[:end]
        self.entries = survivors if end >= start else [GONE] * start
        self._epochs = LeaderEpochs()
        if start > 0:
            # By the last record before the start, if it is still there, or by the last sync.
            found = survivors[:start][-1:] or [GONE]
            ended_in = max(found[0][0], self._saved_epochs.epoch_before(start))
            if ended_in >= 0:
                self._epochs.assign(ended_in, start - 1)
        for offset in range(start, len(self.entries)):
            self._epochs.assign(self.entries[offset][0], offset)
        self.sync()
