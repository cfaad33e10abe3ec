"""One partition as this broker holds it: appends, the high watermark, reads below it, and those who wait.

The marks, always in this order::

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset

``high_watermark`` is what readers may see: what every in-sync replica holds. With one replica that is all that was
appended; for a topic that syncs before it acknowledges, all that was synced, so nobody reads what a power cut can
still take back. ``last_stable_offset`` is what read_committed readers may see: below it every transaction is decided.

A partition is led or followed. A leader appends what clients send and counts its followers (``in_sync.py``); a follower
appends what its leader has, byte for byte, and takes the marks from it (``fetcher.py``).
"""

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol
from uuid import UUID

from skep.base.clock import Clock
from skep.base.config.topic_config import NEVER
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.metadata.model import PartitionRecord
from skep.records.batch import BatchHeader, Buffer
from skep.records.end_txn_marker import MARKER_SIZE
from skep.replication.partition.acknowledgements import Acknowledgements
from skep.replication.partition.delayed_fetch import ParkedFetch, Tail
from skep.replication.partition.group_commit import GroupCommit
from skep.replication.partition.in_sync_replicas import InSyncReplicas
from skep.replication.partition.leadership_lease import LeadershipLease
from skep.storage.log.log import Appended, Log
from skep.storage.log.log_slice import LogSlice

_UNKNOWN_EPOCH = -1
_IN_DOUBT = "its leader hears neither its followers nor the metadata store: ask another broker"
_LEASE_IS_OVER = "another broker may lead it by now: this one has not heard of the metadata store and of its followers"


class Cutter(Protocol):
    """Cuts logs in the background; see ``truncation.py``."""

    def truncate(self, partition: "Partition", offset: Offset) -> "asyncio.Future[None]": ...

    def start_anew(self, partition: "Partition", offset: Offset) -> "asyncio.Future[None]": ...


class Partition:
    """Owns the log's high watermark, the acknowledgements that wait for it, and the fetches parked on it.

    Between calls the order of the marks above holds, and nobody who waits has been owed a wake-up. ``in_sync`` is there
    on a leader that has followers. Made, it leads alone; ``lead`` and ``follow`` say otherwise. Without a ``cutter``
    the log is cut here and now.
    """

    __slots__ = (
        "__weakref__",
        "_acknowledgements",
        "_clock",
        "_commit",
        "_leader_high_watermark",
        "_transactions",
        "_unannounced_bytes",
        "cutter",
        "high_watermark",
        "in_sync",
        "is_leader",
        "leader_epoch",
        "lease",
        "log",
        "on_follower_caught_up",
        "parked",
        "tail",
        "topic_id",
    )

    def __init__(
        self,
        log: Log,
        topic_id: UUID,
        leader_epoch: LeaderEpoch,
        clock: Clock,
        executor: Executor,
        high_watermark: Offset | None = None,
    ) -> None:
        """``high_watermark`` is the last known one of a partition that has several replicas."""
        self.log = log
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.is_leader = True
        self.in_sync: InSyncReplicas | None = None
        self.on_follower_caught_up: Callable[[Partition], None] = _ignore
        self.lease: LeadershipLease | None = None
        self.cutter: Cutter | None = None
        if high_watermark is not None:
            self.high_watermark = Offset(min(max(high_watermark, log.log_start_offset), log.log_end_offset))
        else:
            # After a crash nothing may be known to be synced, if the disk refused that; readers then wait for it.
            flushed_offset = max(log.log_start_offset, log.flushed_offset)
            self.high_watermark = flushed_offset if log.config.syncs_before_acknowledging else log.log_end_offset
        self.parked: set[ParkedFetch] = set()
        self.tail = Tail()
        self._unannounced_bytes = 0
        self._leader_high_watermark = 0
        self._clock = clock
        itself = weakref.ref(self)
        self._commit = GroupCommit(log, executor, lambda: _advance(itself))
        self._acknowledgements = Acknowledgements()
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

    @property
    def lag(self) -> int:
        """How many offsets that are committed a follower does not have yet, as far as its leader has told."""
        return 0 if self.is_leader else max(0, self._leader_high_watermark - self.log.log_end_offset)

    # Leading and following.

    def lead(self, node_id: BrokerId, record: PartitionRecord) -> None:
        """This broker leads, in the record's epoch; again in the same epoch: its replicas or its ISR changed."""
        now = self._clock.monotonic()
        is_new = not self.is_leader or record.leader_epoch != self.leader_epoch
        if is_new:
            if len(record.replicas) > 1 or record.leader_epoch > 0:
                self.log.begin_epoch(record.leader_epoch)
            self._stop_leading()
            self.is_leader = True
            self.leader_epoch = record.leader_epoch
        if len(record.replicas) == 1:
            self.in_sync = None
        elif is_new or self.in_sync is None:
            self.in_sync = InSyncReplicas(node_id, record, self.log.log_end_offset, now)
        else:
            self.in_sync.follow(record, now)
        self._advance()

    def isr_settled(self, node_id: BrokerId, record: PartitionRecord) -> None:
        """The store has answered what was proposed, and this is what it has."""
        if self.in_sync is not None:
            self.in_sync.settle()
        self.lead(node_id, record)

    def doubt(self, is_in_doubt: bool) -> None:
        """Whether another broker may lead (``isr_changes.py``). Who waits for silent followers is sent to look."""
        if self.in_sync is not None:
            self.in_sync.is_in_doubt = is_in_doubt
            if is_in_doubt:
                self._acknowledgements.give_up(self._not_leader(_IN_DOUBT))

    def follow(self, leader_epoch: LeaderEpoch) -> None:
        """Another broker leads, or none does."""
        self._stop_leading()
        self.leader_epoch = leader_epoch

    def _stop_leading(self) -> None:
        if not self.is_leader:
            return
        self.is_leader = False
        self.in_sync = None
        self._acknowledgements.give_up(self._not_leader())
        self.wake_all()

    def _not_leader(self, why: str = "this broker does not lead it (any more)") -> KafkaError:
        return KafkaError(ErrorCode.not_leader_or_follower, f"{self.topic_partition}: {why}")

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuses a client whose idea of the leader is older or newer than ours (KIP-320); -1 asks for no check."""
        if epoch == _UNKNOWN_EPOCH or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch, f"epoch {epoch} is over, this is {self.leader_epoch}")
        raise KafkaError(ErrorCode.unknown_leader_epoch, f"epoch {epoch} is not known here yet")

    @property
    def is_replicated(self) -> bool:
        """Whether there are others that can come to lead it."""
        return self.in_sync is not None

    @property
    def is_lease_over(self) -> bool:
        """Whether another broker may lead by now, and nobody told us (``lease.py``)."""
        if self.in_sync is None or self.lease is None:
            return False
        return self.lease.is_over(self.in_sync.all_heard_at)

    def check_leads(self) -> None:
        """NOT_LEADER_OR_FOLLOWER when what we know may be old; for those who read what must not be."""
        if self.is_lease_over:
            raise self._not_leader(_LEASE_IS_OVER)

    def give_up_waiting(self) -> None:
        """Whoever waits for its in-sync replicas gets NOT_LEADER_OR_FOLLOWER. What was appended stays."""
        self._acknowledgements.give_up(self._not_leader(_LEASE_IS_OVER))

    def check_knows_committed(self) -> None:
        """OFFSET_NOT_AVAILABLE while what the leader before us had committed may lie past our high watermark."""
        if self.in_sync is not None and self.high_watermark < self.in_sync.epoch_start_offset:
            raise KafkaError(ErrorCode.offset_not_available, "the new leader does not know the high watermark yet")

    # Appending, as the leader.

    def append(
        self, batch: Buffer, header: BatchHeader, *, acks_all: bool = True
    ) -> tuple[Appended, "asyncio.Future[None] | None"]:
        """Appends one checked batch. The future, where there is one, says when it may be acknowledged.

        NOT_LEADER_OR_FOLLOWER, and with ``acks_all`` NOT_ENOUGH_REPLICAS, refuse it before anything is written.
        """
        if not self.is_leader:
            raise self._not_leader()
        log, in_sync = self.log, self.in_sync
        if in_sync is not None and acks_all:
            self._check_promise(in_sync)
        # No await from here to the append: the event loop is our lock. With one in between, a retry of the same
        # batch could pass the sequence check before the first copy is recorded, and the log would hold it twice.
        appended = log.append(batch, header, self.leader_epoch, self._clock.now_ms())
        self._unannounced_bytes += len(batch)
        if in_sync is not None:
            return appended, self._replicate(appended, len(batch), acks_all)
        if log.config.flush_messages == NEVER:
            # As _advance finds, by a longer way: nobody has to be waited for.
            self._move_high_watermark(log.log_end_offset)
            return appended, None
        if (synced := self._sync_for(appended)) is not None:
            return appended, synced
        self._advance()
        return appended, None

    def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, committed: bool
    ) -> tuple[Appended, "asyncio.Future[None] | None"]:
        """Ends a producer's transaction here; see ``Log.append_marker``. The future is as that of ``append``."""
        if not self.is_leader:
            raise self._not_leader()
        if self.in_sync is not None:
            self._check_promise(self.in_sync)
        appended = self.log.append_marker(
            producer_id, producer_epoch, coordinator_epoch, committed, self.leader_epoch, self._clock.now_ms()
        )
        self._unannounced_bytes += MARKER_SIZE
        if self.in_sync is not None:
            return appended, self._replicate(appended, MARKER_SIZE, acks_all=True)
        synced = self._sync_for(appended)
        if synced is None:
            self._advance()
        return appended, synced

    def _check_promise(self, in_sync: InSyncReplicas) -> None:
        """Refuses what could not be acknowledged by all in sync."""
        if in_sync.is_in_doubt:
            raise self._not_leader(_IN_DOUBT)
        if (refusal := self._too_few(ErrorCode.not_enough_replicas)) is not None:
            raise refusal

    def _too_few(self, code: ErrorCode) -> KafkaError | None:
        """Why acks=all cannot be promised; None when enough replicas are in sync."""
        told = self.in_sync and self.in_sync.too_few(self.log.config.min_insync_replicas)
        return KafkaError(code, f"{self.topic_partition} has {told}") if told else None

    def _replicate(self, appended: Appended, size: int, acks_all: bool) -> "asyncio.Future[None] | None":
        """The followers are told; what has to be waited for."""
        for parked in tuple(self.tail.parked):
            parked.more(size)
        for watch in self.tail.watches:
            watch.more(size)
        synced = self._sync_for(appended) if self.log.config.flush_messages != NEVER else None
        self._advance()
        if not acks_all:
            return synced
        end = Offset(appended.last_offset + 1)
        return None if self.high_watermark >= end else self._acknowledgements.at(end)

    def _sync_for(self, appended: Appended) -> "asyncio.Future[None] | None":
        """What has to be waited for before the append is acknowledged, in a topic that asks for syncs by number."""
        log, config = self.log, self.log.config
        if config.syncs_before_acknowledging:
            return self._commit.flushed(Offset(appended.last_offset + 1))
        if log.unflushed_records >= config.flush_messages:
            self.flush()
        return None

    def committed(self) -> "asyncio.Future[None] | None":
        """When all that is in the log now may be acknowledged and read; None: now."""
        end = self.log.log_end_offset
        if self.high_watermark >= end:
            return None
        if not self.is_leader:
            raise self._not_leader()
        if self.in_sync is None:
            return self._commit.flushed(end)
        if self.log.config.syncs_before_acknowledging:
            self.flush()
        return self._acknowledgements.at(end)

    # The followers, as their leader sees them.

    def follower_fetched(self, broker: BrokerId, offset: Offset, broker_epoch: int, log_start_offset: int = -1) -> None:
        """A follower asks for ``offset``: it has all before, and ``diverging`` found that it has it from us."""
        in_sync = self.in_sync
        if in_sync is None:
            return
        end = self.log.log_end_offset
        if not in_sync.fetched(broker, offset, end, self._clock.monotonic(), broker_epoch):
            raise KafkaError(ErrorCode.not_leader_or_follower, f"broker {broker} holds no replica of this partition")
        in_sync.followers[broker].log_start_offset = log_start_offset
        if offset > self.high_watermark:
            self._advance()
        if broker not in in_sync.isr and in_sync.can_join(broker, self.high_watermark):
            self.on_follower_caught_up(self)

    def is_deleted_everywhere(self, before: Offset) -> bool:
        """Whether no member of the ISR would bring records below ``before`` back if it were elected."""
        in_sync = self.in_sync
        return in_sync is None or all(
            follower.log_start_offset >= before
            for broker, follower in in_sync.followers.items()
            if broker in in_sync.isr
        )

    def diverging(self, offset: Offset, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Where a follower's history, which ends at ``offset`` in that epoch, leaves ours: the epoch and its end here.

        None: it does not. OFFSET_OUT_OF_RANGE when its epoch is older than all that we still know of.
        """
        if last_fetched_epoch < 0:
            return None
        epoch, end = self.log.end_offset_for_epoch(LeaderEpoch(last_fetched_epoch))
        if epoch < 0:
            raise KafkaError(ErrorCode.offset_out_of_range, f"epoch {last_fetched_epoch} is not known here")
        return (epoch, end) if epoch < last_fetched_epoch or end < offset else None

    # Following.

    def append_fetched(self, records: memoryview, leader_high_watermark: int, leader_log_start: int) -> None:
        """Appends what the leader sent, and takes over its marks."""
        if len(records):
            self._unannounced_bytes += self.log.append_replicated(records, self._clock.now_ms())
        if self.log.log_start_offset < leader_log_start <= self.log.log_end_offset:
            self.log.move_start_to(Offset(leader_log_start))
        self._leader_high_watermark = leader_high_watermark
        end = Offset(min(leader_high_watermark, self.log.log_end_offset))
        self._move_high_watermark(Offset(max(end, self.log.log_start_offset)))

    def truncate_to(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Takes back what the leader does not have. None: it is done; otherwise the future says when it is.

        Nobody may be syncing the log, see ``synced``. Fails with StorageError when the disk refuses.
        """
        if self.cutter is not None:
            return self.cutter.truncate(self, offset)
        self.log.truncate_to(offset)
        self.truncated()
        return None

    def start_anew_at(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Forgets everything: the leader's log begins past the end of this one. Otherwise as ``truncate_to``."""
        if self.cutter is not None:
            return self.cutter.start_anew(self, offset)
        self.log.start_anew_at(offset)
        self.truncated()
        return None

    def truncated(self) -> None:
        """The log has another end, or at least its producers are other objects: told by ``cutter``."""
        log = self.log
        self.high_watermark = Offset(max(log.log_start_offset, min(self.high_watermark, log.log_end_offset)))
        self._transactions = log.producers.transactions
        self._transactions.high_watermark_moved(self.high_watermark)
        self.wake_all()

    # Reading, and the high watermark.

    def read(self, offset: Offset, max_bytes: int, *, up_to: Offset, at_least_one: bool) -> LogSlice:
        return self.log.read(offset, max_bytes, up_to=up_to, at_least_one=at_least_one)

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
        """The leader's log or its followers' have moved."""
        if not self.is_leader:
            return
        log = self.log
        end = log.flushed_offset if log.config.syncs_before_acknowledging else log.log_end_offset
        if self.in_sync is not None:
            end = self.in_sync.committed_end(end)
        if end > self.high_watermark:
            self._move_high_watermark(end)

    def _move_high_watermark(self, end: Offset) -> None:
        if end <= self.high_watermark:
            return
        log = self.log
        is_stable = self._transactions.first_unstable_offset is None
        stable_offset = end if is_stable else self.last_stable_offset
        self.high_watermark = end
        for watch in self.tail.watches:
            watch.moved()
        assert log.log_start_offset <= end <= log.log_end_offset
        # When a sync took only a part, its bytes are announced again with the rest: whoever is woken for nothing looks
        # and waits on, while bytes that were announced too early would wake nobody when they can be read.
        size = self._unannounced_bytes
        if end == log.log_end_offset:
            self._unannounced_bytes = 0
        if self._acknowledgements.offsets:
            self._acknowledgements.reached(end, self._too_few(ErrorCode.not_enough_replicas_after_append))
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
        for parked in (*self.parked, *self.tail.parked):
            parked.wake()
        for watch in tuple(self.tail.watches):
            watch.wake()


def _advance(partition: "weakref.ref[Partition]") -> None:
    """Told by a group commit, which does not keep its partition alive: no garbage collector looks for such cycles."""
    if (alive := partition()) is not None:
        alive._advance()


def _ignore(partition: Partition) -> None:
    """There is nobody to tell."""
