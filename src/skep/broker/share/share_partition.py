"""A share partition: what one share group has in flight of one partition that this broker leads.

It connects the window (``coordination/share/share_window.py``), which has the rules, the log, from which records are
delivered, and the persister, which stores the state. The state is read once, at the first fetch. A member's
acknowledgement is answered when its result is written (``share_writes.py``).

Dead letters. A record that has failed for good is not archived before its dead letter is written, if the group has a
topic for them. ``DeadLetterWriter`` is called when the state of such records is written, and calls back when their
letters are committed. Until then they count as unfinished. If letters cannot be written, the window fills up and the
share partition delivers nothing new; no record is lost.

End. A share partition ends when its partition is no longer led in the same epoch, when a write is fenced, when its
state cannot be read, or when the group has no member left here. ``error`` is set then, and it is never used again.
"""

import asyncio
import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from skep.base.clock import Clock
from skep.base.config.retry_backoff import LONGEST_DELAY_MS
from skep.base.config.share_group_config import EARLIEST, KEY_ORDER, ShareGroupConfig, duration_of_reset_ms
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.broker.fetch.sliced_records import sliced_records
from skep.broker.share.dead_letter_writer import DeadLetterWriter
from skep.broker.share.delivered_batches import DeliveredBatches, aborted_batches, found_batches
from skep.broker.share.delivery_breaker import DeliveryBreaker
from skep.broker.share.key_reader import KeyReader, Wanted
from skep.broker.share.share_writes import ShareWrites, error_for_member
from skep.coordination.share.acknowledgement import Acknowledgement
from skep.coordination.share.acquisition import Acquired, Order
from skep.coordination.share.delivery_rules import DeliveryRules
from skep.coordination.share.delivery_runs import Hint, OffsetRange
from skep.coordination.share.share_state import (
    UNINITIALIZED,
    DeadLetters,
    DeliveryState,
    SharePartitionKey,
    SharePersister,
    ShareState,
    StateBatch,
    generation_text,
)
from skep.coordination.share.share_window import ShareWindow
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.replication.partition.partition import Partition
from skep.replication.partition.time_lookups import TimeLookups
from skep.storage.log.log_slice import LogSlice
from skep.storage.segment.batch_scan import BatchPlace

logger = logging.getLogger(__name__)

_READS_AT_ONCE = 8
"""How often a delivery reads on because what it found was aborted or is no longer in the log."""

_WRITE_AGAIN_MS = 1_000
"""When a failed write without a waiting request is retried: deliveries have to be counted even if no member returns."""

_CLOCK_CHECK_MS = 10_000
"""How long a wait for a time of the wall clock may be before the clock is read again: it may be set."""

MAX_REOPENED = 10_000
"""Ranges of offsets that are opened again in one write."""

_MOST_DEAD = 1_000
"""Runs of dead records that are looked at together: 2 ms."""

_MAX_TEXT = 1_000
"""Characters of what a member says about a failure."""


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
    dead_letters: Callable[[], DeadLetterWriter | None]
    """Returns the writer of dead letters of this broker; None if there is none."""
    executor: Executor
    """Decodes keys, for groups that are ordered by them."""
    slicer: Slicer


Mark = tuple[int | None, bool, int, int, int]


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
        self.loading: asyncio.Task[None] | None = None
        self._context = context
        self._writes = ShareWrites(self, context.persister, context.supervisor, lambda: context.settled(self))
        self._rules: tuple[ShareGroupConfig, DeliveryRules] | None = None
        self._was_full = False
        name = f"group {key.group_id!r}, {partition.topic_partition}"
        self._breaker = DeliveryBreaker(name, partial(context.options, key.group_id), context.clock)
        self._key_reader: KeyReader | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being read, or written, or has to be, and no dead letter is missing. What is read now is
        what the next write changes."""
        writes, window = self._writes, self.window
        if window is None or writes.is_writing or writes.is_unsure or writes.unwritten:
            return False
        return not window.archiving and not window.is_releasing

    @property
    def options(self) -> ShareGroupConfig:
        return self._context.options(self.key.group_id)

    @property
    def topic(self) -> str:
        return self.partition.topic_partition.topic

    @property
    def generation(self) -> str:
        return generation_text(self._writes.state_epoch, self._writes.generation)

    @property
    def problem(self) -> str | None:
        """Why records are not delivered, or dead letters are not written, although there are some; for operators."""
        queue = self._context.dead_letters()
        missing = None if queue is None else queue.problem(self)
        if missing is not None:
            return f"dead letters cannot be written: {missing}"
        return self._breaker.problem

    def _now_ms(self) -> int:
        return round(self._context.clock.monotonic() * 1000)

    def _rules_now(self) -> DeliveryRules:
        return self._rules_of(self.options)

    def _rules_of(self, options: ShareGroupConfig) -> DeliveryRules:
        has_dead_letters = bool(options.dead_letter_topic) and self._context.dead_letters() is not None
        if self._rules is None or self._rules[0] is not options or self._rules[1].has_dead_letters != has_dead_letters:
            self._rules = options, DeliveryRules.of(options, has_dead_letters=has_dead_letters)
        return self._rules[1]

    # The beginning and the end.

    def load(self) -> None:
        name = f"load the share partition {self.key.coordinator_key}"
        self.loading = self._context.supervisor.spawn(name, self._load())

    async def _load(self) -> None:
        try:
            state = await self._context.persister.read(self.key, self.leader_epoch)
            self._writes.begin(state)
            start_offset = state.start_offset
            if start_offset == UNINITIALIZED:
                start_offset = await self._choose_start(state)
            window = await self._context.slicer.finish(
                ShareWindow.restoring(start_offset, state.batches, self._rules_now())
            )
        except (KafkaError, StorageError) as error:
            self.end(error_for_member(error))
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
            self._check_later(window)
            self._announce_dead_letters(window)
            self._wake()
            self._context.settled(self)

    async def _choose_start(self, state: ShareState) -> int:
        """Returns where a group without a state begins. It is written at once: with share.auto.offset.reset=latest the
        next leader would begin after records that this one has delivered and no member has accepted."""
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
            self.key,
            ShareState(
                state.state_epoch,
                self.leader_epoch,
                start_offset,
                delivery_complete_count=0,
                generation=state.generation,
            ),
        )
        return start_offset

    async def check_state_epoch(self) -> None:
        """Ends this share partition if its state was replaced: the group's offsets were reset, or the group was deleted
        and created again. Otherwise that is found out by the next write, and there may be none for long.

        Not while a write is under way: it may begin a state epoch itself, and is refused if the state was replaced.
        """
        known = self._writes.state_epoch
        try:
            current = (await self._context.persister.summary(self.key)).state_epoch
        except (KafkaError, StorageError):
            return
        # Dead letters that are missing do not count: their share group is gone.
        is_being_written = self._writes.is_writing or self.window is None
        if not is_being_written and self._writes.state_epoch == known != current:
            self.end(KafkaError(ErrorCode.not_leader_or_follower, "the state of the share partition was replaced"))

    def end(self, error: KafkaError) -> None:
        """Ends this share partition. Those that wait for a write or for records get ``error``."""
        if self.error is not None:
            return
        self.error = error
        self._writes.fail(error)
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
            window.can_acquire and self._breaker.most_records(window) != 0,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
        )

    @property
    def is_readable(self) -> bool:
        """Whether there may be something to deliver."""
        window = self.window
        return window is not None and window.can_acquire and window.next_fetch_offset < self._up_to(self.options)

    def _up_to(self, options: ShareGroupConfig) -> Offset:
        partition = self.partition
        return partition.last_stable_offset if _reads_committed(options) else partition.high_watermark

    def readable_bytes(self, max_bytes: int) -> int:
        """Returns how many bytes a delivery could have, about."""
        found = self._read(self.options)
        return 0 if found is None else min(found[0].size, max_bytes)

    def deliver(self, order: Order, max_bytes: int, *, at_least_one: bool) -> DeliveredBatches | None:
        """Acquires records for a member, within ``max_bytes``; None if there are none now. Raises KafkaError and
        StorageError when the log cannot be read."""
        options = self.options
        for _ in range(_READS_AT_ONCE):
            read = self._read(options, order.max_records)
            if read is None or self.window is None:
                return None
            found, only = read
            if (most := self._breaker.most_records(self.window)) is not None:
                order = order._replace(max_records=min(most, order.max_records), is_record_limit=True)
            position = self.window.next_fetch_offset
            reach = only[-1][1] if only else self.window.reach(order.max_records)
            places = found_batches(found, reach, max_bytes, at_least_one=at_least_one)
            if not places:
                return None
            acquired = self._acquire(self.window, order, options, found, places, only)
            if acquired:
                return DeliveredBatches(sliced_records(self._slice(found, places, acquired)), acquired)
            if self.window.next_fetch_offset == position and only is None:
                return None
        return None

    def _read(
        self, options: ShareGroupConfig, max_records: int = 1
    ) -> tuple[LogSlice, list[OffsetRange] | None] | None:
        """Returns the batches from the first record that can be acquired on, up to the end of their segment; and what
        may be acquired of them, if the group is ordered by key."""
        window = self.window
        if window is None:
            return None
        self._follow_options(window, options)
        self._follow_log_start(window)
        window.wake(self._context.clock.now_ms())
        position, up_to = window.next_fetch_offset, self._up_to(options)
        if position >= up_to or not window.can_acquire or self._breaker.most_records(window) == 0:
            return None
        if window.is_passing_deleted:
            return None
        only = self._free(window, options, max_records)
        if only is not None:
            if not only:
                return None
            position = only[0][0]
        # How far is decided from the batches: to find out where so many bytes end takes as many reads again.
        found = self.partition.read(Offset(position), sys.maxsize, up_to=up_to, at_least_one=True)
        return None if found.file is None else (found, only)

    def _free(self, window: ShareWindow, options: ShareGroupConfig, max_records: int) -> list[OffsetRange] | None:
        """Returns the records whose key is free, of those that the broker has looked into; None if the group does not
        want it to. Begins to read more if they are needed."""
        context = self._context
        wanted = Wanted(options.order == KEY_ORDER, options.ttl_header_enable)
        if not any(wanted):
            self._key_reader = None
            return None
        if self._key_reader is None or self._key_reader.wanted != wanted:
            self._key_reader = KeyReader(
                wanted, window, self.partition, context.executor, context.supervisor, lambda: self._wake()
            )
        self._key_reader.read_on(self._up_to(options))
        return self._key_reader.keys.free(window, max_records)

    def _acquire(
        self,
        window: ShareWindow,
        order: Order,
        options: ShareGroupConfig,
        found: LogSlice,
        places: Sequence[BatchPlace],
        only: list[OffsetRange] | None,
    ) -> list[Acquired]:
        aborted = aborted_batches(self.partition.log, found, places) if _reads_committed(options) else []
        due_ms = self._now_ms() + options.record_lock_duration_ms
        batches = [(place.base_offset, place.last_offset) for place in places]
        expired: list[OffsetRange] = []
        if ttl_ms := options.record_ttl_ms:
            oldest_ms = self._context.clock.now_ms() - ttl_ms
            expired = [
                batch for batch, place in zip(batches, places, strict=True) if 0 <= place.max_timestamp < oldest_ms
            ]
        if only is not None and self._key_reader is not None:
            whole = [*aborted, *expired]
            single = self._key_reader.keys.expired(only, self._context.clock.now_ms())
            expired = sorted([*expired, *(one for one in single if not _is_within(one, whole))])
        acquired = window.acquire(order, batches, due_ms, aborted=aborted, expired=expired, only=only)
        if acquired:
            self._context.check_at(self, due_ms)
        if dropped := window.take_dropped():
            self._writes.changed(dropped)
        return acquired

    def _slice(self, found: LogSlice, places: Sequence[BatchPlace], acquired: Sequence[Acquired]) -> LogSlice:
        """Returns the batches from the first acquired record to the last one."""
        first = next(place for place in places if place.last_offset >= acquired[0].first)
        last = next(place for place in reversed(places) if place.base_offset <= acquired[-1].last)
        if last.end < found.position + found.size:
            self.partition.log.remember(last.last_offset + 1, last.end)
        return LogSlice(found.file, first.position, last.end - first.position, Offset(last.last_offset + 1))

    def _follow_options(self, window: ShareWindow, options: ShareGroupConfig) -> None:
        window.rules = rules = self._rules_of(options)
        if window.archiving and not rules.has_dead_letters:
            # The group has no dead-letter topic any more.
            self.dead_letters_written([(one.first, one.last) for one in window.dead_letters()])
        is_full = window.waiting >= rules.max_waiting
        if is_full and not self._was_full:
            logger.warning(
                "share partition %s has %d records that wait for their next delivery: no new ones are delivered until "
                "fewer than %d wait (skep.share.max.waiting.records)",
                self.key.coordinator_key,
                window.waiting,
                rules.max_waiting,
            )
        self._was_full = is_full

    def _follow_log_start(self, window: ShareWindow) -> None:
        log_start_offset = self.partition.log.log_start_offset
        if log_start_offset > window.start_offset:
            if given_up := window.log_start_moved(log_start_offset):
                self._writes.changed(given_up)
            if window.is_passing_deleted:
                self._context.check_at(self, self._now_ms())

    # Results.

    def acknowledge(
        self, member: str, batches: Sequence[Acknowledgement]
    ) -> "asyncio.Future[KafkaError | None] | KafkaError | None":
        """Returns None if the result is written, or nothing has to be; the error if it cannot be written; or a future
        of either.

        Raises KafkaError.
        """
        window, options = self.window, self.options
        if window is None:
            raise KafkaError(ErrorCode.invalid_record_state, "nothing of the partition was delivered by this leader")
        window.rules = self._rules_of(options)
        self._follow_log_start(window)
        due_ms = self._now_ms() + options.record_lock_duration_ms
        now_ms = self._context.clock.now_ms()
        ranges = window.acknowledge(member, batches, due_ms, now_ms=now_ms, can_renew=options.renew_acknowledge_enable)
        if not ranges:
            return None
        self._breaker.watch(window)
        return self._writes.acknowledged(ranges)

    def release(self, member: str) -> None:
        """Releases what a member holds: its session has ended."""
        if self.window is not None and self.error is None:
            self.window.rules = self._rules_now()
            self._released(self.window.release(member, now_ms=self._context.clock.now_ms()))
            self._breaker.watch(self.window)
            self._check_later(self.window)

    def expire(self) -> None:
        """Releases what is held for too long, and delivers again what has waited for its time."""
        if self.window is not None and self.error is None:
            self.window.rules = self._rules_now()
            self._released(self.window.expire(self._now_ms(), now_ms=self._context.clock.now_ms()))
            self._breaker.watch(self.window)
            is_passing_deleted = self.window.is_passing_deleted
            self._follow_log_start(self.window)
            if is_passing_deleted or self._breaker.most_records(self.window) == 1:
                self._wake()
            self._check_later(self.window)
            if self._writes.unwritten:
                self._writes.changed(())

    def delay(self, offset: int, delay_ms: int | None, *, member: str | None = None, text: str = "") -> None:
        """Says what happens if the delivery of a record that a member holds fails: when it is released, or its lock
        expires, the record waits for ``delay_ms`` before it is delivered again, instead of what the group's options
        say; None leaves it at those. ``text`` says why it fails, for the dead letter.

        It counts for this delivery only, and is lost with the leader. ``member`` is the one that has to hold the
        record; None if that does not matter. Raises INVALID_REQUEST for a delay out of range, INVALID_RECORD_STATE if
        the record is not held.
        """
        if delay_ms is not None and not 0 <= delay_ms <= LONGEST_DELAY_MS:
            raise KafkaError(
                ErrorCode.invalid_request, f"a delay of {delay_ms} ms is not between 0 and {LONGEST_DELAY_MS} ms"
            )
        if self.window is None or self.error is not None:
            raise KafkaError(ErrorCode.invalid_record_state, "nothing of the partition was delivered by this leader")
        self.window.delay(offset, Hint(delay_ms, text[:_MAX_TEXT]), member)

    def reschedule(self, offset: int, delay_ms: int) -> None:
        """Delivers a record that waits after ``delay_ms`` from now. Raises INVALID_RECORD_STATE if it does not wait."""
        if self.window is None or self.error is not None:
            raise KafkaError(ErrorCode.invalid_record_state, "nothing of the partition was delivered by this leader")
        now_ms = self._context.clock.now_ms()
        self._released(self.window.reschedule(offset, now_ms + delay_ms, now_ms))
        self._check_later(self.window)

    # Dead letters.

    def dead_letters(self) -> list[DeadLetters]:
        """Returns records that have failed for good, which is written, and whose dead letters are not written. A range
        may have offsets at which there is no record, or only a transaction marker: they need no dead letter.

        There may be more: those are returned when the first ones are done with, or announced when they are written.
        """
        if self.window is None or self.error is not None:
            return []
        unwritten = self._writes.unwritten
        return [one for one in self.window.dead_letters(_MOST_DEAD) if not _is_in(unwritten, one)]

    def dead_letters_written(self, ranges: Sequence[OffsetRange]) -> "asyncio.Future[KafkaError | None]":
        """The dead letters of these offsets are committed: they are done with. Does nothing for others, or when this
        share partition has ended; then the next leader finds them again.

        Returns a future that is done when this is written, and everything that has changed before.
        """
        if self.window is None or self.error is not None:
            written: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
            written.set_result(self.error)
            return written
        return self._writes.flushed(self.window.archive(ranges))

    def _announce_dead_letters(self, window: ShareWindow) -> None:
        if window.archiving and (queue := self._context.dead_letters()) is not None:
            queue.added(self)

    # Opening again.

    async def reopen(self, ranges: Sequence[OffsetRange]) -> int:
        """Opens finished offsets again, as if they had never been delivered, and returns their number when that is
        written. Others are ignored: what is not finished, was never delivered, or is no longer in the log.

        The write replaces the whole state, under the next generation (``share_operations.py``), because the merge of
        other writes lets nothing go back. What members hold meanwhile, they keep. Raises KafkaError: INVALID_REQUEST
        for ranges that are not, or too many; else what a write may meet. Then it is not known whether they are open to
        the next leader; to this one they are not, and its next write makes that certain.
        """
        if len(ranges) > MAX_REOPENED or any(not 0 <= first <= last for first, last in ranges):
            raise KafkaError(
                ErrorCode.invalid_request, f"at most {MAX_REOPENED} ranges of offsets can be opened again at once"
            )
        if self.window is None or self.error is not None:
            raise self.error or KafkaError(ErrorCode.coordinator_load_in_progress, "the share state is being read")
        result = await self._writes.reopen(ranges)
        if isinstance(result, KafkaError):
            raise result
        return result

    # Times.

    def _released(self, ranges: Sequence[OffsetRange]) -> None:
        if ranges:
            self._writes.changed(ranges)
            self._wake()

    def _check_later(self, window: ShareWindow) -> None:
        if (due_ms := window.next_due) is not None:
            self._context.check_at(self, int(due_ms))
        if (until_ms := self._breaker.next_check_ms) is not None:
            self._context.check_at(self, until_ms)
        wall_ms = self._context.clock.now_ms()
        if window.wake(wall_ms):
            self._wake()
        if (time_ms := window.next_time_ms) is not None:
            self._context.check_at(self, self._now_ms() + min(time_ms - wall_ms, _CLOCK_CHECK_MS))

    # What the writes call.

    @property
    def log_start_offset(self) -> int:
        return int(self.partition.log.log_start_offset)

    def roll_back(self, window: ShareWindow, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        return window.roll_back(ranges, self._now_ms(), now_ms=self._context.clock.now_ms())

    def written(self, window: ShareWindow, batches: Sequence[StateBatch]) -> None:
        if self.check_ms is None or window.waiting or self._breaker.is_open:
            # Otherwise the next check is that of a lock, and early enough for all others.
            self._check_later(window)
        if batches and any(batch.state is DeliveryState.ARCHIVING for batch in batches):
            self._announce_dead_letters(window)
        if self.delayed_fetches and window.can_acquire:
            self._wake()

    def not_written(self, window: ShareWindow, released: Sequence[OffsetRange]) -> None:
        self._check_later(window)
        if self._writes.unwritten:
            self._context.check_at(self, self._now_ms() + _WRITE_AGAIN_MS)
        if released:
            self._wake()


def _reads_committed(options: ShareGroupConfig) -> bool:
    return options.isolation_level == "read_committed"


def _is_within(one: OffsetRange, others: Sequence[OffsetRange]) -> bool:
    return any(first <= one[0] and one[1] <= last for first, last in others)


def _is_in(ranges: Sequence[OffsetRange], dead: DeadLetters) -> bool:
    """Returns whether one of the ranges, which are ascending and disjoint, has an offset of these."""
    number = bisect_left(ranges, dead.first, key=lambda one: one[1])
    return number < len(ranges) and ranges[number][0] <= dead.last
