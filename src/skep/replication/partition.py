"""One partition as its leader serves it: appends, the high watermark, reads below it, and those who wait.

The marks, always in this order::

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset

``high_watermark`` is what readers may see: what every in-sync replica holds. With one replica that is all that was
appended; for a topic that syncs before it acknowledges, all that was synced, so nobody reads what a power cut can
still take back. ``last_stable_offset`` is what read_committed readers may see: below it every transaction is decided.
"""

import asyncio
from concurrent.futures import Executor
from uuid import UUID

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.base.topic_config import NEVER
from skep.records.batch import BatchHeader
from skep.records.end_txn_marker import MARKER_SIZE
from skep.replication.flushing import GroupCommit
from skep.replication.waiting import ParkedFetch
from skep.storage.log import Appended, Log
from skep.storage.reading import LogSlice

_UNKNOWN_EPOCH = -1


class Partition:
    """Owns the log's high watermark and the fetches parked on it.

    Between calls the order of the marks above holds, and no parked fetch has been owed a wake-up.
    """

    __slots__ = (
        "_clock",
        "_commit",
        "_transactions",
        "_unannounced_bytes",
        "high_watermark",
        "leader_epoch",
        "log",
        "parked",
        "topic_id",
    )

    def __init__(self, log: Log, topic_id: UUID, leader_epoch: LeaderEpoch, clock: Clock, executor: Executor) -> None:
        self.log = log
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        # After a crash nothing may be known to be synced, if the disk refused that; readers then wait for it.
        flushed_offset = max(log.log_start_offset, log.flushed_offset)
        self.high_watermark = flushed_offset if log.config.syncs_before_acknowledging else log.log_end_offset
        self.parked: set[ParkedFetch] = set()
        self._unannounced_bytes = 0
        self._clock = clock
        self._commit = GroupCommit(log, executor, self._advance)
        self._transactions = log.producers.transactions
        self._transactions.high_watermark_moved(self.high_watermark)

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def last_stable_offset(self) -> Offset:
        """Where a read_committed reader stops; without undecided transactions, at the high watermark."""
        unstable = self._transactions.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        # What DeleteRecords has left of the transaction, if it took its beginning.
        return min(self.high_watermark, max(unstable, self.log.log_start_offset))

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuses a client whose idea of the leader is older or newer than ours (KIP-320); -1 asks for no check."""
        if epoch == _UNKNOWN_EPOCH or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch, f"epoch {epoch} is over, this is {self.leader_epoch}")
        raise KafkaError(ErrorCode.unknown_leader_epoch, f"epoch {epoch} is not known here yet")

    def append(self, batch: bytes, header: BatchHeader) -> tuple[Appended, "asyncio.Future[None] | None"]:
        """Appends one checked batch. The future, where there is one, says when it may be acknowledged."""
        log = self.log
        # No await from here to the append: the event loop is our lock. With one in between, a retry of the same
        # batch could pass the sequence check before the first copy is recorded, and the log would hold it twice.
        appended = log.append(batch, header, self.leader_epoch, self._clock.now_ms())
        self._unannounced_bytes += len(batch)
        if log.config.flush_messages != NEVER and (synced := self._sync_for(appended)) is not None:
            return appended, synced
        self._advance()
        return appended, None

    def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, committed: bool
    ) -> tuple[Appended, "asyncio.Future[None] | None"]:
        """Ends a producer's transaction here; see ``Log.append_marker``. The future is as that of ``append``."""
        appended = self.log.append_marker(
            producer_id, producer_epoch, coordinator_epoch, committed, self.leader_epoch, self._clock.now_ms()
        )
        self._unannounced_bytes += MARKER_SIZE
        synced = self._sync_for(appended)
        if synced is None:
            self._advance()
        return appended, synced

    def _sync_for(self, appended: Appended) -> "asyncio.Future[None] | None":
        """What has to be waited for before the append is acknowledged, in a topic that asks for syncs by number."""
        log, config = self.log, self.log.config
        if config.syncs_before_acknowledging:
            return self._commit.flushed(Offset(appended.last_offset + 1))
        if log.unflushed_records >= config.flush_messages:
            self.flush()
        return None

    def read(self, offset: Offset, max_bytes: int, *, up_to: Offset, at_least_one: bool) -> LogSlice:
        return self.log.read(offset, max_bytes, up_to=up_to, at_least_one=at_least_one)

    def committed(self) -> "asyncio.Future[None] | None":
        """When all that is in the log now may be acknowledged and read; None: now."""
        end = self.log.log_end_offset
        return None if self.high_watermark >= end else self._commit.flushed(end)

    def flush(self) -> "asyncio.Future[None]":
        """Syncs what is there now, together with whoever else waits for it; also what keeps a failed log failed."""
        return self._commit.flushed(self.log.log_end_offset)

    @property
    def is_syncing(self) -> bool:
        return not self._commit.is_idle

    async def synced(self) -> None:
        """Returns when no sync is under way; for those who take the log's files away."""
        await self._commit.idle()

    def _advance(self) -> None:
        log = self.log
        end = log.flushed_offset if log.config.syncs_before_acknowledging else log.log_end_offset
        if end <= self.high_watermark:
            return
        is_stable = self._transactions.first_unstable_offset is None
        stable_offset = end if is_stable else self.last_stable_offset
        self.high_watermark = end
        assert log.log_start_offset <= end <= log.log_end_offset
        # When a sync took only a part, its bytes are announced again with the rest: whoever is woken for nothing looks
        # and waits on, while bytes that were announced too early would wake nobody when they can be read.
        size = self._unannounced_bytes
        if end == log.log_end_offset:
            self._unannounced_bytes = 0
        if is_stable:
            for parked in tuple(self.parked):
                parked.more(size)
        else:
            self._announce_amid_transactions(size, stable_offset)

    def _announce_amid_transactions(self, size: int, stable_offset: Offset) -> None:
        """The high watermark has moved; ``stable_offset`` is the last stable offset as it was before that."""
        self._transactions.high_watermark_moved(self.high_watermark)
        has_moved = self.last_stable_offset > stable_offset
        for parked in tuple(self.parked):
            if not parked.read_committed:
                parked.more(size)
            elif has_moved:
                parked.wake()

    def wake_all(self) -> None:
        """The partition goes away or changes hands: whoever waits looks again and gets the error."""
        for parked in tuple(self.parked):
            parked.wake()
