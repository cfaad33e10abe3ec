"""Deletes segments: the log drops them at once, their files are removed a little later, in a thread.

The delay (``file.delete.delay.ms``) is for readers that are being sent a segment when it is deleted. On a disk that is
filling up there is no delay.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from skep.base.clock import Clock
from skep.base.errors import StorageError
from skep.base.loop.supervisor import Supervisor
from skep.replication.partition.partition import Partition
from skep.storage.log.retention import segments_below_start, segments_to_delete
from skep.storage.segment.segment import Segment

logger = logging.getLogger(__name__)

REMOVALS_AT_ONCE = 20


class Removal(Protocol):
    """Segments that no log reads from any more. Both steps run in a thread."""

    @property
    def size(self) -> int: ...

    def mark(self) -> None: ...

    def remove(self) -> None: ...


@dataclass(slots=True, eq=False)
class _UnderWay:
    """One removal. Once marked it waits for ``delay_s``."""

    partition: Partition
    removal: Removal
    delay_s: float
    is_marked: bool = False
    is_abandoned: bool = False


class SegmentDeletion:
    """Deletes segments of partitions. Owns the removals that are in progress or waiting for their delay.

    If the broker stops before a removal is done, the files already have their ``.deleted`` names and are removed when
    the log is opened again. If the partition itself is deleted, its removals are ended first: a later topic of the same
    name has files of the same names in the same place.

    One task processes all removals in batches: one DeleteRecords request may begin ten thousand. ``_batch`` is what a
    thread is working on; ``_waiting`` is a heap, ordered by the end of the delay. ``spared`` is a partition whose
    segments are kept for now because they are being compacted.
    """

    def __init__(self, clock: Clock, executor: Executor, supervisor: Supervisor) -> None:
        self._clock = clock
        self._executor = executor
        self._supervisor = supervisor
        self._under_way: dict[Partition, list[_UnderWay]] = {}
        self._unmarked: deque[_UnderWay] = deque()
        self._waiting: list[tuple[float, int, _UnderWay]] = []
        self._numbers = itertools.count()
        self._batch: Collection[_UnderWay] = ()
        self._batch_ended = asyncio.Event()
        self._news = asyncio.Event()
        self._is_running = False
        self.spared: Partition | None = None

    def delete_expired(self, partition: Partition, *, at_once: bool = False) -> int:
        """Deletes what retention or DeleteRecords permits and returns its size in bytes. ``at_once`` skips the delay.

        Raises StorageError when the disk refuses; the deletion is retried later.
        """
        if partition is self.spared or partition.log.is_being_cut:
            return 0
        now_ms = self._clock.now_ms()
        # A leader that was succeeded may not know that the topic now keeps its records for longer.
        if partition.is_leader and not partition.is_lease_expired:
            segments = segments_to_delete(partition.log, now_ms, up_to=partition.high_watermark)
        else:
            # The leader decides what expires, and a follower takes over its log start. With its own clock or its own
            # disk a follower could delete what it may have to serve as the leader one day.
            segments = segments_below_start(partition.log)
        if not segments:
            return 0
        size = sum(segment.size for segment in segments)
        delay_s = 0 if at_once else partition.log.config.file_delete_delay_ms / 1000
        self._delete(partition, segments, now_ms, delay_s, "expired")
        return size

    def delete_oldest(self, partition: Partition, count: int) -> None:
        """Deletes the oldest segments although they have not expired, without delay: the space is needed now."""
        if partition is self.spared or partition.log.is_being_cut:
            return
        segments = partition.log.segments[:count]
        self._delete(partition, segments, self._clock.now_ms(), 0, "early, because the disk is filling up")

    def hurry(self) -> int:
        """Ends the delay of all waiting removals. Returns how many bytes will be freed, including removals in
        progress."""
        freed_bytes = 0
        for removals in self._under_way.values():
            for under_way in removals:
                under_way.delay_s = 0.0
                freed_bytes += under_way.removal.size
        self._waiting = [(0.0, number, under_way) for _, number, under_way in self._waiting]
        heapq.heapify(self._waiting)
        self._news.set()
        return freed_bytes

    def _delete(self, partition: Partition, segments: Sequence[Segment], now_ms: int, delay_s: float, why: str) -> None:
        removal = partition.log.detach(segments, now_ms)
        partition.wake_all()
        logger.info(
            "%s: deleted %d segments (%s), %d bytes; the log now starts at %d",
            partition.topic_partition,
            len(removal.segments),
            why,
            removal.size,
            partition.log.log_start_offset,
        )
        self._begin(_UnderWay(partition, removal, delay_s))

    def remove_later(self, partition: Partition, removal: Removal) -> None:
        """Removes segments that compaction has replaced, whose files already have their ``.deleted`` names."""
        delay_s = partition.log.config.file_delete_delay_ms / 1000
        self._begin(_UnderWay(partition, removal, delay_s, is_marked=True))

    def _begin(self, under_way: _UnderWay) -> None:
        self._under_way.setdefault(under_way.partition, []).append(under_way)
        if under_way.is_marked:
            self._wait(under_way)
        else:
            self._unmarked.append(under_way)
        self._news.set()
        if not self._is_running:
            self._is_running = True
            self._supervisor.spawn("remove segments", self._run())

    def _wait(self, under_way: _UnderWay) -> None:
        due = asyncio.get_running_loop().time() + under_way.delay_s
        heapq.heappush(self._waiting, (due, next(self._numbers), under_way))

    async def abandon(self, partition: Partition) -> None:
        """Returns when no removal works on the partition's files any more. Waiting removals are abandoned."""
        for under_way in self._under_way.pop(partition, ()):
            under_way.is_abandoned = True
        while any(under_way.partition is partition for under_way in self._batch):
            await self._batch_ended.wait()

    async def _run(self) -> None:
        """Runs until nothing waits: marks new removals, removes those that are due."""
        try:
            while self._unmarked or self._waiting:
                self._news.clear()
                if self._unmarked:
                    marked = [self._unmarked.popleft() for _ in range(min(REMOVALS_AT_ONCE, len(self._unmarked)))]
                    for under_way in await self._in_thread(marked, lambda one: one.removal.mark()):
                        self._wait(under_way)
                    continue
                now, due = asyncio.get_running_loop().time(), list[_UnderWay]()
                while self._waiting and self._waiting[0][0] <= now and len(due) < REMOVALS_AT_ONCE:
                    due.append(heapq.heappop(self._waiting)[2])
                if due:
                    for under_way in await self._in_thread(due, lambda one: one.removal.remove()):
                        self._ended(under_way)
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._waiting[0][0] - now):
                            await self._news.wait()
        finally:
            self._is_running = False

    async def _in_thread(self, batch: list[_UnderWay], work: Callable[[_UnderWay], None]) -> list[_UnderWay]:
        """Runs ``work`` for each in a thread. Returns those for which it succeeded."""

        def done() -> list[tuple[_UnderWay, StorageError | None]]:
            return [(one, _failure(work, one)) for one in batch if not one.is_abandoned]

        self._batch = batch
        self._batch_ended.clear()
        try:
            outcomes = await asyncio.get_running_loop().run_in_executor(self._executor, done)
        finally:
            self._batch = ()
            self._batch_ended.set()
        for under_way, failure in outcomes:
            if failure is not None:
                # Files that still lack the .deleted name are found at the next start, and expire again.
                logger.error("cannot remove deleted segments: %s", failure)
                self._ended(under_way)
        return [under_way for under_way, failure in outcomes if failure is None]

    def _ended(self, under_way: _UnderWay) -> None:
        removals = self._under_way.get(under_way.partition, [])
        if under_way in removals:
            removals.remove(under_way)
            if not removals:
                del self._under_way[under_way.partition]


def _failure(work: Callable[[_UnderWay], None], one: _UnderWay) -> StorageError | None:
    try:
        work(one)
    except StorageError as error:
        return error
    return None
