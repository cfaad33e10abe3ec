"""A share partition: what one share group has in flight of one partition that this broker leads.

It joins three things: the window (``coordination/share/share_window.py``), which decides, the log, from which records
are delivered, and the persister, which keeps the state. The state is read once, at the first fetch.

Writes. A member's acknowledgement is answered when its result is written. One write is under way at a time; everything
that changes meanwhile is in the next one. So many members that acknowledge at once share a write, and no write can
overtake another. A write that fails gives the records back to the member.

End. A share partition ends when its partition is no longer led in the same epoch, when a write is fenced, when its
state cannot be read, or when the group has no member left here. ``error`` is set then, and it is never used again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from skep.base.clock import Clock
from skep.base.config.share_group_config import EARLIEST, ShareGroupConfig, duration_of_reset_ms
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.base.loop.supervisor import Supervisor
from skep.broker.fetch.sliced_records import sliced_records
from skep.broker.share.delivery import Delivery, aborted_batches
from skep.coordination.share.acknowledgement import Acknowledgement
from skep.coordination.share.acquisition import Acquired, Order
from skep.coordination.share.delivery_runs import OffsetRange, merged
from skep.coordination.share.share_state import UNINITIALIZED, SharePartitionKey, SharePersister, ShareState
from skep.coordination.share.share_window import ShareWindow
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.replication.partition.partition import Partition
from skep.replication.partition.time_lookups import TimeLookups
from skep.storage.log.log_slice import LogSlice
from skep.storage.segment.batch_scan import BatchPlace, hop

logger = logging.getLogger(__name__)

_READS_AT_ONCE = 8
"""How often a delivery reads on because what it found was aborted or is no longer in the log."""

_ENDED_BY = {
    ErrorCode.fenced_leader_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_state_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.group_id_not_found: ErrorCode.group_id_not_found,
    ErrorCode.unknown_topic_or_partition: ErrorCode.unknown_topic_or_partition,
}
"""Errors of the persister after which the state has to be read again, and what members are told."""

_COORDINATOR_MOVES = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


class ShareContext(NamedTuple):
    """What all share partitions of a broker use."""

    persister: SharePersister
    clock: Clock
    supervisor: Supervisor
    time_lookups: TimeLookups
    options: Callable[[str], ShareGroupConfig]
    """The options of a group."""
    check_at: "Callable[[SharePartition, int], None]"
    """Calls ``expire`` at that time, in milliseconds of the monotonic clock, or earlier."""
    ended: "Callable[[SharePartition], None]"
    settled: "Callable[[SharePartition], None]"
    """Called when nothing is being read or written any more."""


Mark = tuple[int | None, bool, int, int, int]


class _Waiting(NamedTuple):
    """An acknowledgement whose result has to be written."""

    ranges: Sequence[OffsetRange]
    written: "asyncio.Future[KafkaError | None]"


class SharePartition:
    """Owns the window and its writes. ``window`` is None until the state was read. ``delayed_fetches`` are woken when
    something can be acquired, and when the share partition ends."""

    def __init__(self, key: SharePartitionKey, partition: Partition, context: ShareContext) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.window: ShareWindow | None = None
        self.error: KafkaError | None = None
        self.delayed_fetches: set[DelayedFetch] = set()
        self.check_ms: int | None = None
        """When ``expire`` will be called; set by the owner of the timer."""
        self._context = context
        self._state_epoch = 0
        self._waiting: list[_Waiting] = []
        self._unwritten: list[OffsetRange] = []
        """What has changed without a member's request."""
        self._is_writing = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being read or written."""
        return not self._is_writing and self.window is not None

    @property
    def options(self) -> ShareGroupConfig:
        return self._context.options(self.key.group_id)

    def _now_ms(self) -> int:
        return round(self._context.clock.monotonic() * 1000)

    # The beginning and the end.

    def load(self) -> None:
        self._context.supervisor.spawn(f"load the share partition {self.key.coordinator_key}", self._load())

    async def _load(self) -> None:
        try:
            state = await self._context.persister.read(self.key, self.leader_epoch)
            self._state_epoch = state.state_epoch
            start_offset = state.start_offset
            if start_offset == UNINITIALIZED:
                start_offset = await self._choose_start(state)
            options = self.options
            window = ShareWindow.restored(
                start_offset, state.batches, options.delivery_count_limit, options.partition_max_record_locks
            )
        except (KafkaError, StorageError) as error:
            self.end(_told(error))
            return
        if start_offset > self.partition.log.log_end_offset:
            # The store does not let a start move back.
            logger.warning(
                "share partition %s begins at offset %d, past the end of the log, %d: the group gets nothing between",
                self.key.coordinator_key,
                start_offset,
                self.partition.log.log_end_offset,
            )
        if self.error is None:
            self.window = window
            self._wake()
            self._context.settled(self)

    async def _choose_start(self, state: ShareState) -> int:
        """Returns where a group without a state begins. It is written at once: by share.auto.offset.reset=latest the
        next leader would begin behind records that this one has delivered and nobody has accepted."""
        reset, partition = self.options.auto_offset_reset, self.partition
        if reset == EARLIEST:
            start_offset = int(partition.log.log_start_offset)
        else:
            partition.check_leads()
            partition.check_knows_committed()
            start_offset = partition.high_watermark
            if (back_ms := duration_of_reset_ms(reset)) is not None:
                timestamp = max(0, self._context.clock.now_ms() - back_ms)
                found = await self._context.time_lookups.find(partition.log, timestamp, Offset(start_offset))
                start_offset = start_offset if found is None else found.offset
        await self._context.persister.write(
            self.key, ShareState(state.state_epoch, self.leader_epoch, start_offset, delivery_complete_count=0)
        )
        return start_offset

    def end(self, error: KafkaError) -> None:
        """Ends this share partition. Those that wait for a write or for records get ``error``."""
        if self.error is not None:
            return
        self.error = error
        self._fail(self._waiting, error)
        self._waiting = []
        self._context.ended(self)
        self._wake()

    def _wake(self) -> None:
        for delayed in tuple(self.delayed_fetches):
            delayed.wake()

    # Delivering.

    @property
    def mark(self) -> Mark:
        """What decides whether something can be delivered."""
        window, partition = self.window, self.partition
        if window is None or self.error is not None:
            return None, self.error is None, 0, 0, 0
        return (
            window.next_fetch_offset,
            window.can_acquire,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
        )

    def readable_bytes(self, max_bytes: int) -> int:
        """Returns how many bytes a delivery could have, about."""
        found = self._read(max_bytes, at_least_one=True)
        return 0 if found is None else found.size

    def deliver(self, order: Order, max_bytes: int, *, at_least_one: bool) -> Delivery | None:
        """Acquires records for a member, within ``max_bytes``; None if there are none now. Raises KafkaError and
        StorageError when the log cannot be read."""
        for _ in range(_READS_AT_ONCE):
            found = self._read(max_bytes, at_least_one=at_least_one)
            if found is None or self.window is None:
                return None
            position = self.window.next_fetch_offset
            places, acquired = self._acquire(self.window, order, found)
            if acquired:
                records = sliced_records(_slice(found, places, acquired))
                return Delivery(records, acquired)
            if self.window.next_fetch_offset == position:
                return None
        return None

    def _read(self, max_bytes: int, *, at_least_one: bool) -> LogSlice | None:
        """Returns the batches from the first record that can be acquired on."""
        window, partition = self.window, self.partition
        if window is None:
            return None
        self._follow_log_start(window)
        options = self.options
        window.delivery_limit, window.max_locks = options.delivery_count_limit, options.partition_max_record_locks
        position = window.next_fetch_offset
        up_to = partition.last_stable_offset if self._reads_committed else partition.high_watermark
        if position >= up_to or not window.can_acquire:
            return None
        found = partition.read(Offset(position), max_bytes, up_to=up_to, at_least_one=at_least_one)
        return None if found.file is None else found

    @property
    def _reads_committed(self) -> bool:
        return self.options.isolation_level == "read_committed"

    def _acquire(self, window: ShareWindow, order: Order, found: LogSlice) -> tuple[list[BatchPlace], list[Acquired]]:
        reach, end = window.reach(order.max_records), found.position + found.size
        hops = hop(found.file, found.position, end)  # type: ignore[arg-type]  # the slice is not empty
        # The first one in any case: a hole in the log may be larger than what can be acquired.
        first = next(hops, None)
        if first is None:
            raise KafkaError(ErrorCode.corrupt_message, f"no batch is at position {found.position} of {found.file}")
        places = [first, *takewhile(lambda place: place.base_offset <= reach, hops)]
        aborted = aborted_batches(self.partition.log, found, places) if self._reads_committed else []
        due_ms = self._now_ms() + self.options.record_lock_duration_ms
        acquired = window.acquire(
            order, [(place.base_offset, place.last_offset) for place in places], due_ms, aborted=aborted
        )
        if acquired:
            self._context.check_at(self, due_ms)
        return places, acquired

    def _follow_log_start(self, window: ShareWindow) -> None:
        log_start_offset = self.partition.log.log_start_offset
        if log_start_offset > window.start_offset:
            window.log_start_moved(log_start_offset)

    # Results.

    def acknowledge(
        self, member: str, batches: Sequence[Acknowledgement]
    ) -> "asyncio.Future[KafkaError | None] | None":
        """Returns a future that is done when the result is written, with None or the error; None if nothing has to be.

        Raises KafkaError.
        """
        window, options = self.window, self.options
        if window is None:
            raise KafkaError(ErrorCode.invalid_record_state, "nothing of the partition was delivered by this leader")
        self._follow_log_start(window)
        window.delivery_limit = options.delivery_count_limit
        due_ms = self._now_ms() + options.record_lock_duration_ms
        ranges = window.acknowledge(member, batches, due_ms, can_renew=options.renew_acknowledge_enable)
        if not ranges:
            return None
        written: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(ranges, written))
        self._write_soon()
        return written

    def release(self, member: str) -> None:
        """Releases what a member holds: its session has ended."""
        if self.window is not None and self.error is None:
            self._released(self.window.release(member))

    def expire(self) -> None:
        """Releases what is held for too long."""
        if self.window is not None and self.error is None:
            self._released(self.window.expire(self._now_ms()))
            self._check_later(self.window)

    def _released(self, ranges: Sequence[OffsetRange]) -> None:
        if ranges:
            self._unwritten.extend(ranges)
            self._write_soon()
            self._wake()

    def _check_later(self, window: ShareWindow) -> None:
        if (due_ms := window.next_due) is not None:
            self._context.check_at(self, int(due_ms))

    # Writing.

    def _write_soon(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._context.supervisor.spawn(f"write the share partition {self.key.coordinator_key}", self._write_all())

    async def _write_all(self) -> None:
        """Writes until nothing has changed. After a failure, changes that nobody waits for stay for the next write.

        A task begins in the next turn of the event loop, so the first write has everything of the turn before.
        """
        try:
            has_failed = False
            while self.error is None and (self._waiting or (self._unwritten and not has_failed)):
                has_failed = not await self._write_once()
        finally:
            self._is_writing = False
        if self.error is None and not self._waiting:
            self._context.settled(self)

    async def _write_once(self) -> bool:
        window, waiting, unwritten = self.window, self._waiting, self._unwritten
        assert window is not None
        self._waiting, self._unwritten = [], []
        ranges = [*unwritten, *(one for acknowledged in waiting for one in acknowledged.ranges)]
        start_offset, complete_count, batches = window.to_write(ranges)
        state = ShareState(self._state_epoch, self.leader_epoch, start_offset, complete_count, batches)
        try:
            await self._context.persister.write(self.key, state)
        except (KafkaError, StorageError) as error:
            self._roll_back(window, waiting, unwritten, error)
            return False
        for acknowledged in waiting:
            window.commit(acknowledged.ranges)
        for acknowledged in waiting:
            if not acknowledged.written.done():
                acknowledged.written.set_result(None)
        if window.can_acquire:
            self._wake()
        return True

    def _roll_back(
        self,
        window: ShareWindow,
        waiting: Sequence[_Waiting],
        unwritten: Sequence[OffsetRange],
        error: KafkaError | StorageError,
    ) -> None:
        released = [one for acknowledged in waiting for one in window.roll_back(acknowledged.ranges, self._now_ms())]
        self._unwritten = merged([*unwritten, *released, *self._unwritten])
        told = _told(error)
        logger.warning("the state of share partition %s was not written: %s", self.key.coordinator_key, error)
        self._fail(waiting, told)
        if isinstance(error, KafkaError) and error.code in _ENDED_BY:
            self.end(told)
            return
        self._check_later(window)
        if released:
            self._wake()

    @staticmethod
    def _fail(waiting: Sequence[_Waiting], error: KafkaError) -> None:
        for acknowledged in waiting:
            if not acknowledged.written.done():
                acknowledged.written.set_result(error)


def _slice(found: LogSlice, places: Sequence[BatchPlace], acquired: Sequence[Acquired]) -> LogSlice:
    """Returns the batches from the first acquired record to the last one."""
    first = next(place for place in places if place.last_offset >= acquired[0].first)
    last = next(place for place in reversed(places) if place.base_offset <= acquired[-1].last)
    return LogSlice(found.file, first.position, last.end - first.position, Offset(last.last_offset + 1))


def _told(error: KafkaError | StorageError) -> KafkaError:
    """Returns what a member is told of an error of the persister, as Kafka does it."""
    if isinstance(error, StorageError):
        return KafkaError(ErrorCode.kafka_storage_error, str(error))
    if error.code in _ENDED_BY:
        return KafkaError(_ENDED_BY[error.code], error.detail)
    if error.code in _COORDINATOR_MOVES:
        return KafkaError(ErrorCode.coordinator_not_available, error.detail)
    if error.code in (ErrorCode.offset_not_available, ErrorCode.not_leader_or_follower):
        return error
    return KafkaError(ErrorCode.unknown_server_error, error.detail)
