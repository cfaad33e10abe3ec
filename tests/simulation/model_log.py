"""A log without files: a list of (leader epoch, value), one record a batch, and the real ``LeaderEpochs``.

It has as much of ``storage.Log`` as ``Partition`` and ``Fetcher`` ask for. Sizes are counted in records. ``synced`` of
them survive a power cut; in a topic that syncs before it acknowledges, a sync is over at once, and all of them do.
"""

from types import SimpleNamespace

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.base.topic_config import NEVER
from skep.storage.appending import Appended
from skep.storage.leader_epochs import LeaderEpochs
from tests.simulation.violation import Violation

Entry = tuple[int, int]


class _NoTransactions:
    first_unstable_offset = None

    def high_watermark_moved(self, offset):
        pass


class ModelLog:
    """What a disk keeps of a partition; the process that opened it may go and another come."""

    log_start_offset = 0
    failure = None
    is_config_waiting = False
    is_flushing = False
    is_being_cut = False
    lost_data = False

    def __init__(self, topic_partition: TopicPartition, min_insync_replicas: int, is_synced: bool) -> None:
        self.topic_partition = topic_partition
        self.entries: list[Entry] = []
        self.synced = 0
        self.was_synced = is_synced
        self.epochs = LeaderEpochs()
        self.producers = SimpleNamespace(transactions=_NoTransactions())
        self.config = SimpleNamespace(
            min_insync_replicas=min_insync_replicas,
            syncs_before_acknowledging=is_synced,
            flush_messages=1 if is_synced else NEVER,
            throttled_followers=(),
        )

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def flushed_offset(self) -> int:
        return self.synced

    def sync(self) -> None:
        self.synced = len(self.entries)

    @property
    def unflushed_records(self) -> int:
        return len(self.entries) - self.synced

    @property
    def last_batch_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, len(self.entries))

    def begin_epoch(self, epoch: int) -> None:
        if epoch > self.epochs.latest:
            self.epochs.assign(epoch, len(self.entries))

    def append(self, batch: bytes, header: int, leader_epoch: int, now_ms: int) -> Appended:
        """``header`` is the value: a batch of the model has nothing else."""
        offset = len(self.entries)
        self._append((leader_epoch, header))
        return Appended(offset, offset, -1, 0, False)

    def append_replicated(self, records: list[Entry], now_ms: int) -> int:
        for entry in records:
            if entry[0] < self.epochs.latest:
                raise KafkaError(ErrorCode.corrupt_message, "an epoch goes back")
            self._append(entry)
        return len(records)

    def _append(self, entry: Entry) -> None:
        if self.entries and entry[0] < self.entries[-1][0]:
            raise Violation(f"{self.topic_partition}: {entry} is appended to {self.entries}: an epoch goes back")
        self.epochs.assign(entry[0], len(self.entries))
        self.entries.append(entry)
        if self.config.syncs_before_acknowledging:
            self.sync()

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> list[Entry]:
        if not 0 <= offset <= len(self.entries):
            raise KafkaError(ErrorCode.offset_out_of_range, f"{offset} is past {len(self.entries)}")
        return self.entries[offset : min(up_to, offset + max_bytes)]

    def truncate_to(self, offset: int) -> None:
        del self.entries[offset:]
        self.synced = min(self.synced, len(self.entries))
        self.epochs.truncate_end(len(self.entries))

    def move_start_to(self, offset: int) -> None:
        raise AssertionError("the model deletes nothing by age")

    def start_anew_at(self, offset: int) -> None:
        raise AssertionError("no leader of the model begins past 0")

    def reopen(self, end: int) -> None:
        """As a start finds it: cut where the disk lost the rest, without epochs that have no batch; and synced."""
        del self.entries[end:]
        self.sync()
        self.epochs = LeaderEpochs()
        for offset, (epoch, _) in enumerate(self.entries):
            self.epochs.assign(epoch, offset)
