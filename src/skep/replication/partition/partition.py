"""One partition on this broker: appends, the high watermark, reads below it, and those that wait for it.

The offsets, always in this order::

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset

``high_watermark`` bounds what readers may see: what every in-sync replica has. With one replica that is everything that
was appended or, in a topic that syncs before it acknowledges, everything that was synced, so that nobody reads what a
power cut can still take back. ``last_stable_offset`` bounds what read_committed readers may see: every transaction
below it is decided.

A partition is led or followed here. A leader appends what clients send and tracks its followers
(``in_sync_replicas.py``). A follower appends what its leader has, byte for byte, and takes over the leader's high
watermark and log start (``follower/fetcher.py``).
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
from skep.replication.partition.delayed_fetch import DelayedFetch, Tail
from skep.replication.partition.group_commit import GroupCommit
from skep.replication.partition.in_sync_replicas import InSyncReplicas
from skep.replication.partition.leadership_lease import LeadershipLease
from skep.storage.log.log import Appended, Log
from skep.storage.log.log_slice import LogSlice

_UNKNOWN_EPOCH = -1
_IN_DOUBT = (
    "another broker may lead: neither the in-sync replicas nor the metadata store respond to this one; "
    "refresh metadata from another broker"
)
_LEASE_EXPIRED = (
    "another broker may lead: the lease of this one has expired, because neither the metadata store nor the in-sync "
    "replicas respond; refresh metadata"
)


class BackgroundTruncation(Protocol):
    """Truncates logs in the background; see ``follower/truncations.py``."""

    def truncate(self, partition: "Partition", offset: Offset) -> "asyncio.Future[None]": ...

    def start_over(self, partition: "Partition", offset: Offset) -> "asyncio.Future[None]": ...


class Partition:
    """Owns the high watermark of the log, the acknowledgements that wait for it, and the delayed fetches.

    Between calls the order of offsets above holds, and every waiter that is due has been woken. ``in_sync`` is set on a
    leader that has followers. A new partition leads alone until ``lead`` or ``follow`` is called. Without
    ``truncations`` the log is truncated synchronously.
    """

    __slots__ = (
        "__weakref__",
        "_acknowledgements",
        "_clock",
        "_commit",
        "_leader_high_watermark",
        "_transactions",
        "_unannounced_bytes",
        "delayed_fetches",
        "high_watermark",
        "in_sync",
        "is_leader",
        "leader_epoch",
        "lease",
        "log",
        "on_follower_caught_up",
        "tail",
        "topic_id",
        "truncations",
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
        """``high_watermark`` is the last known one of a partition with several replicas."""
        self.log = log
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.is_leader = True
        self.in_sync: InSyncReplicas | None = None
        self.on_follower_caught_up: Callable[[Partition], None] = _ignore
        self.lease: LeadershipLease | None = None
        self.truncations: BackgroundTruncation | None = None
        if high_watermark is not None:
            self.high_watermark = Offset(min(max(high_watermark, log.log_start_offset), log.log_end_offset))
        else:
            # After a crash nothing may be known to be synced, if the disk refused to sync. Readers then wait for a
            # sync.
            flushed_offset = max(log.log_start_offset, log.flushed_offset)
            self.high_watermark = flushed_offset if log.config.syncs_before_acknowledging else log.log_end_offset
        self.delayed_fetches: set[DelayedFetch] = set()
        self.tail = Tail()
        self._unannounced_bytes = 0
        self._leader_high_watermark = 0
        self._clock = clock
        itself = weakref.ref(self)
        self._commit = GroupCommit(log, executor, lambda: _advance_if_alive(itself))
        self._acknowledgements = Acknowledgements()
        self._transactions = log.producers.transactions
        self._transactions.high_watermark_moved(self.high_watermark)

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def last_stable_offset(self) -> Offset:
        """The offset at which read_committed reads stop: the high watermark if there are no undecided transactions."""
        unstable = self._transactions.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        # DeleteRecords may have deleted the beginning of the transaction.
        return min(self.high_watermark, max(unstable, self.log.log_start_offset))

    @property
    def lag(self) -> int:
        """The number of committed offsets that a follower does not have yet, by the leader's last response."""
        return 0 if self.is_leader else max(0, self._leader_high_watermark - self.log.log_end_offset)

    # Roles.

    def lead(self, node_id: BrokerId, record: PartitionRecord) -> None:
        """This broker leads, in the record's epoch. Called again in the same epoch when the replicas or the ISR have
        changed."""
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
        if self.is_unconfirmed:
            self.on_follower_caught_up(self)  # the ISR is due to be written, as when a follower has caught up
        self._advance()

    def isr_settled(self, node_id: BrokerId, record: PartitionRecord) -> None:
        """The store has responded to the proposed ISR, and has this record."""
        if self.in_sync is not None:
            self.in_sync.settle()
        self.lead(node_id, record)

    def set_in_doubt(self, is_in_doubt: bool) -> None:
        """Sets whether another broker may lead (``isr_updater.py``). If so, pending acknowledgements fail: clients look
        for the leader."""
        if self.in_sync is not None:
            self.in_sync.is_in_doubt = is_in_doubt
            if is_in_doubt:
                self._acknowledgements.fail_all(self._not_leader(_IN_DOUBT))

    def follow(self, leader_epoch: LeaderEpoch) -> None:
        """Another broker leads, or none does."""
        self._stop_leading()
        self.leader_epoch = leader_epoch

    def _stop_leading(self) -> None:
        if not self.is_leader:
            return
        self.is_leader = False
        self.in_sync = None
        self._acknowledgements.fail_all(self._not_leader())
        self.wake_all()

    def _not_leader(self, why: str = "this broker does not lead it") -> KafkaError:
        return KafkaError(ErrorCode.not_leader_or_follower, f"{self.topic_partition}: {why}")

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuses a client whose leader epoch is older or newer than ours (KIP-320); -1 skips the check."""
        if epoch == _UNKNOWN_EPOCH or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.fenced_leader_epoch, f"leader epoch {epoch} is fenced; the current one is {self.leader_epoch}"
            )
        raise KafkaError(
            ErrorCode.unknown_leader_epoch,
            f"leader epoch {epoch} is newer than {self.leader_epoch}, the one that is known here",
        )

    @property
    def is_replicated(self) -> bool:
        """Whether another replica could become the leader."""
        return self.in_sync is not None

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the high watermark waits until this leader has written its ISR; see ``InSyncReplicas``."""
        return self.in_sync is not None and self.in_sync.is_unconfirmed(self.log.config.min_insync_replicas)

    @property
    def commits_at_once(self) -> bool:
        """Whether what is appended is committed when ``append`` returns."""
        return self.in_sync is None and self.log.state.config.flush_messages == NEVER

    @property
    def is_lease_expired(self) -> bool:
        """Whether another broker may lead by now without our knowing (``leadership_lease.py``)."""
        if self.in_sync is None or self.lease is None:
            return False
        return self.lease.is_expired(self.in_sync.all_heard_at)

    def check_leads(self) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER when another broker may lead. Called before reads that must not be stale."""
        if self.is_lease_expired:
            raise self._not_leader(_LEASE_EXPIRED)

    def fail_pending_acks(self) -> None:
        """Fails pending acknowledgements with NOT_LEADER_OR_FOLLOWER. What was appended stays in the log."""
        self._acknowledgements.fail_all(self._not_leader(_LEASE_EXPIRED))

    def check_knows_committed(self) -> None:
        """Raises OFFSET_NOT_AVAILABLE while offsets that the previous leader had committed may lie past our high
        watermark."""
        if self.in_sync is not None and self.high_watermark < self.in_sync.epoch_start_offset:
            raise KafkaError(
                ErrorCode.offset_not_available, "the new leader does not know the high watermark yet; retry"
            )

    # Appends of the leader.

    def append(
        self, batch: Buffer, header: BatchHeader, *, acks_all: bool = True
    ) -> tuple[Appended, "asyncio.Future[None] | None"]:
        """Appends one checked batch. The future, if there is one, is done when the batch may be acknowledged.

        Raises NOT_LEADER_OR_FOLLOWER and, with ``acks_all``, NOT_ENOUGH_REPLICAS before anything is written.
        """
        if not self.is_leader:
            raise self._not_leader()
        log, in_sync = self.log, self.in_sync
        if in_sync is not None and acks_all:
            self._check_can_acknowledge(in_sync)
        # No await from here to the append: the event loop is our lock. With an await in between, a retry of the same
        # batch could pass the sequence check before the first copy is recorded, and the log would hold the batch twice.
        appended = log.append(batch, header, self.leader_epoch, self._clock.now_ms())
        self._unannounced_bytes += len(batch)
        if in_sync is not None:
            return appended, self._replicate(appended, len(batch), acks_all)
        if log.state.config.flush_messages == NEVER:
            # The result of _advance, computed faster: there is nothing to wait for.
            self._move_high_watermark(log.state.log_end_offset)
            return appended, None
        if (synced := self._sync_for(appended)) is not None:
            return appended, synced
        self._advance()
        return appended, None

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        *,
        raises_epoch: bool = False,
    ) -> tuple[Appended, "asyncio.Future[None] | None"]:
        """Ends a producer's transaction in this partition; see ``Log.append_marker``. The future is as that of
        ``append``."""
        if not self.is_leader:
            raise self._not_leader()
        if self.in_sync is not None:
            self._check_can_acknowledge(self.in_sync)
        appended = self.log.append_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            committed,
            self.leader_epoch,
            self._clock.now_ms(),
            raises_epoch=raises_epoch,
        )
        self._unannounced_bytes += MARKER_SIZE
        if self.in_sync is not None:
            return appended, self._replicate(appended, MARKER_SIZE, acks_all=True)
        synced = self._sync_for(appended)
        if synced is None:
            self._advance()
        return appended, synced

    def _check_can_acknowledge(self, in_sync: InSyncReplicas) -> None:
        """Raises KafkaError when an append with acks=all could not be acknowledged."""
        if in_sync.is_in_doubt:
            raise self._not_leader(_IN_DOUBT)
        if (refusal := self._too_few(ErrorCode.not_enough_replicas)) is not None:
            raise refusal

    def _too_few(self, code: ErrorCode) -> KafkaError | None:
        """Returns the error ``code`` when fewer replicas than ``min.insync.replicas`` are in sync, otherwise None."""
        shortage = self.in_sync and self.in_sync.too_few(self.log.config.min_insync_replicas)
        return KafkaError(code, f"{self.topic_partition} has {shortage}") if shortage else None

    def _replicate(self, appended: Appended, size: int, acks_all: bool) -> "asyncio.Future[None] | None":
        """Wakes the followers' fetches. Returns what the acknowledgement has to wait for."""
        for delayed in tuple(self.tail.delayed_fetches):
            delayed.more(size)
        for watch in self.tail.watches:
            watch.more(size)
        synced = self._sync_for(appended) if self.log.config.flush_messages != NEVER else None
        self._advance()
        if not acks_all:
            return synced
        end = Offset(appended.last_offset + 1)
        return None if self.high_watermark >= end else self._acknowledgements.at(end)

    def _sync_for(self, appended: Appended) -> "asyncio.Future[None] | None":
        """Returns what the acknowledgement has to wait for in a topic with ``flush.messages``."""
        log, config = self.log, self.log.config
        if config.syncs_before_acknowledging:
            return self._commit.flushed(Offset(appended.last_offset + 1))
        if log.unflushed_records >= config.flush_messages:
            self.flush()
        return None

    def committed(self) -> "asyncio.Future[None] | None":
        """Returns a future that is done when everything in the log now may be acknowledged and read; None means now."""
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

    # Followers, as their leader sees them.

    def follower_fetched(self, broker: BrokerId, offset: Offset, broker_epoch: int, log_start_offset: int = -1) -> None:
        """A follower asks for ``offset``: it has everything before it, and ``diverging`` has found that it is our
        history."""
        in_sync = self.in_sync
        if in_sync is None:
            return
        end = self.log.log_end_offset
        if not in_sync.fetched(broker, offset, end, self._clock.monotonic(), broker_epoch):
            raise KafkaError(
                ErrorCode.not_leader_or_follower, f"broker {broker} is not a replica of {self.topic_partition}"
            )
        in_sync.followers[broker].log_start_offset = log_start_offset
        if offset > self.high_watermark:
            self._advance()
        if broker not in in_sync.isr and in_sync.can_join(broker, self.high_watermark):
            self.on_follower_caught_up(self)

    def is_deleted_everywhere(self, before: Offset) -> bool:
        """Whether no member of the ISR would bring back records below ``before`` if it were elected."""
        in_sync = self.in_sync
        return in_sync is None or all(
            follower.log_start_offset >= before
            for broker, follower in in_sync.followers.items()
            if broker in in_sync.isr
        )

    def diverging(self, offset: Offset, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Returns where a follower's history, which ends at ``offset`` in that epoch, diverges from ours: the epoch and
        its end here. None if it does not diverge.

        Raises OFFSET_OUT_OF_RANGE when the epoch is older than all that are known here.
        """
        if last_fetched_epoch < 0:
            return None
        epoch, end = self.log.divergence(LeaderEpoch(last_fetched_epoch))
        if epoch < 0:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"leader epoch {last_fetched_epoch} is older than all that are known here",
            )
        return (epoch, end) if epoch < last_fetched_epoch or end < offset else None

    # Following.

    def append_fetched(self, records: memoryview, leader_high_watermark: int, leader_log_start: int) -> None:
        """Appends what the leader sent, and takes over its high watermark and log start."""
        if len(records):
            self._unannounced_bytes += self.log.append_replicated(records, self._clock.now_ms())
        if self.log.log_start_offset < leader_log_start <= self.log.log_end_offset:
            self.log.move_start_to(Offset(leader_log_start))
        self._leader_high_watermark = leader_high_watermark
        end = Offset(min(leader_high_watermark, self.log.log_end_offset))
        self._move_high_watermark(Offset(max(end, self.log.log_start_offset)))

    def truncate_to(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Truncates what the leader does not have. Returns None when that is done, otherwise a future.

        No sync of the log may be in progress, see ``synced``. Raises StorageError, or fails with it, when the disk
        refuses.
        """
        if self.truncations is not None:
            return self.truncations.truncate(self, offset)
        self.log.truncate_to(offset)
        self.truncated()
        return None

    def start_over_at(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Drops the whole log: the leader's log begins past its end. Otherwise like ``truncate_to``."""
        if self.truncations is not None:
            return self.truncations.start_over(self, offset)
        self.log.start_over_at(offset)
        self.truncated()
        return None

    def truncated(self) -> None:
        """Called after a truncation: ``log.producers`` is another object, and the log may have another end."""
        log = self.log
        self.high_watermark = Offset(max(log.log_start_offset, min(self.high_watermark, log.log_end_offset)))
        self._transactions = log.producers.transactions
        self._transactions.high_watermark_moved(self.high_watermark)
        self.wake_all()

    # Reads and the high watermark.

    def read(self, offset: Offset, max_bytes: int, *, up_to: Offset, at_least_one: bool) -> LogSlice:
        return self.log.read(offset, max_bytes, up_to=up_to, at_least_one=at_least_one)

    def flush(self) -> "asyncio.Future[None]":
        """Syncs everything that is in the log now, in one group commit with other waiters. A failed log fails here as
        well."""
        return self._commit.flushed(self.log.log_end_offset)

    @property
    def is_syncing(self) -> bool:
        return not self._commit.is_idle

    async def synced(self) -> None:
        """Returns when no sync is in progress. Called before the files of the log are removed or truncated."""
        await self._commit.idle()

    def _advance(self) -> None:
        """Moves the high watermark. Called when the end of the leader's log, or of a follower's, has moved."""
        if not self.is_leader or self.is_unconfirmed:
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
        log = self.log.state
        is_stable = self._transactions.first_unstable_offset is None
        stable_offset = end if is_stable else self.last_stable_offset
        self.high_watermark = end
        for watch in self.tail.watches:
            watch.moved()
        assert log.log_start_offset <= end <= log.log_end_offset
        # If a sync covered only a part, its bytes are announced again with the rest: a fetch that is woken for nothing
        # reads again and goes on waiting, while bytes that were announced too early would wake nobody when they can be
        # read.
        size = self._unannounced_bytes
        if end == log.log_end_offset:
            self._unannounced_bytes = 0
        if self._acknowledgements.offsets:
            self._acknowledgements.reached(end, self._too_few(ErrorCode.not_enough_replicas_after_append))
        if is_stable:
            for delayed in tuple(self.delayed_fetches):
                delayed.more(size)
        else:
            self._announce_amid_transactions(size, stable_offset)

    def _announce_amid_transactions(self, size: int, stable_offset: Offset) -> None:
        """Wakes fetches after the high watermark has moved. ``stable_offset`` is the last stable offset from before the
        move."""
        self._transactions.high_watermark_moved(self.high_watermark)
        has_moved = self.last_stable_offset > stable_offset
        for delayed in tuple(self.delayed_fetches):
            if not delayed.read_committed:
                delayed.more(size)
            elif has_moved:
                delayed.wake()

    def wake_all(self) -> None:
        """Wakes all delayed fetches: the partition was removed or its leader has changed, and they read again and get
        the error."""
        for delayed in (*self.delayed_fetches, *self.tail.delayed_fetches):
            delayed.wake()
        for watch in tuple(self.tail.watches):
            watch.wake()


def _advance_if_alive(partition: "weakref.ref[Partition]") -> None:
    """Called by a group commit. It has a weak reference, because the garbage collector may not look for cycles
    (``base/loop/garbage.py``)."""
    if (alive := partition()) is not None:
        alive._advance()


def _ignore(partition: Partition) -> None:
    """The default callback."""
