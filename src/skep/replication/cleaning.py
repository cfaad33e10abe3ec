"""Deleting segments: the log lets go of them at once, their files go a little later, in a thread.

The delay (``file.delete.delay.ms``) is for readers that are being sent a segment when it goes. On a disk that fills up
there is none.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from skep.base.clock import Clock
from skep.base.errors import StorageError
from skep.base.tasks import Supervisor
from skep.replication.partition import Partition
from skep.storage.retention import segments_below_start, segments_to_delete
from skep.storage.segment import Segment

logger = logging.getLogger(__name__)


class Removal(Protocol):
    """Segments that no log reads from any more; both steps run in a thread."""

    @property
    def size(self) -> int: ...

    def mark(self) -> None: ...

    def remove(self) -> None: ...


@dataclass(slots=True, eq=False)
class _UnderWay:
    """One removal. Its delay is over when the time has passed or ``is_over`` is set."""

    removal: Removal
    is_marked: bool = False
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    is_abandoned: bool = False


class Cleaner:
    """Deletes segments of partitions. Owns the removals that are under way or waiting for their delay.

    When the broker stops before a removal is done, the files have their ``.deleted`` name already and go when the log
    is opened again. When the partition itself is deleted, its removals are ended first: a later topic of the same name
    has files of the same names in the same place.

    ``spared`` is a partition whose segments stay for now, because they are being compacted.
    """

    def __init__(self, clock: Clock, executor: Executor, supervisor: Supervisor) -> None:
        self._clock = clock
        self._executor = executor
        self._supervisor = supervisor
        self._under_way: dict[Partition, dict[asyncio.Task[None], _UnderWay]] = {}
        self.spared: Partition | None = None

    def delete_expired(self, partition: Partition, *, at_once: bool = False) -> int:
        """What retention or DeleteRecords allows to go, in bytes; ``at_once`` when the space is needed now.

        StorageError when the disk refuses; it is tried again later.
        """
        if partition is self.spared or partition.log.is_being_cut:
            return 0
        now_ms = self._clock.now_ms()
        # One that was succeeded may not know that the topic keeps its records for longer by now.
        if partition.is_leader and not partition.is_lease_over:
            segments = segments_to_delete(partition.log, now_ms, up_to=partition.high_watermark)
        else:
            # What expires is the leader's to say, whose log start a follower takes over: with its own clock or its own
            # disk it could delete what it may have to serve one day.
            segments = segments_below_start(partition.log)
        if not segments:
            return 0
        size = sum(segment.size for segment in segments)
        delay_s = 0 if at_once else partition.log.config.file_delete_delay_ms / 1000
        self._delete(partition, segments, now_ms, delay_s, "expired")
        return size

    def delete_oldest(self, partition: Partition, count: int) -> None:
        """The oldest segments although they have not expired, without delay: the space is needed now."""
        if partition is self.spared or partition.log.is_being_cut:
            return
        segments = partition.log.segments[:count]
        self._delete(partition, segments, self._clock.now_ms(), 0, "deleted early, the disk is filling up")

    def hurry(self) -> int:
        """Ends the delay of all removals that wait; says how many bytes are about to go, those just going included."""
        freed_bytes = 0
        for removals in self._under_way.values():
            for under_way in removals.values():
                under_way.is_over.set()
                freed_bytes += under_way.removal.size
        return freed_bytes

    def _delete(self, partition: Partition, segments: Sequence[Segment], now_ms: int, delay_s: float, why: str) -> None:
        removal = partition.log.detach(segments, now_ms)
        partition.wake_all()
        logger.info(
            "%s: %d segments %s, %d bytes; the log starts at %d now",
            partition.topic_partition,
            len(removal.segments),
            why,
            removal.size,
            partition.log.log_start_offset,
        )
        self._begin(partition, _UnderWay(removal), delay_s)

    def remove_later(self, partition: Partition, removal: Removal) -> None:
        """Segments that compaction has replaced, whose files have their ``.deleted`` names already."""
        self._begin(partition, _UnderWay(removal, is_marked=True), partition.log.config.file_delete_delay_ms / 1000)

    def _begin(self, partition: Partition, under_way: _UnderWay, delay_s: float) -> None:
        work = self._remove(under_way, delay_s)
        task = self._supervisor.spawn(f"remove segments of {partition.topic_partition}", work)
        self._under_way.setdefault(partition, {})[task] = under_way
        task.add_done_callback(lambda done: self._ended(partition, done))

    def _ended(self, partition: Partition, task: "asyncio.Task[None]") -> None:
        removals = self._under_way[partition]
        del removals[task]
        if not removals:
            del self._under_way[partition]

    async def abandon(self, partition: Partition) -> None:
        """Returns when no removal works on the partition's files any more; those that wait do not go on."""
        removals = dict(self._under_way.get(partition, {}))
        for under_way in removals.values():
            under_way.is_abandoned = True
            under_way.is_over.set()
        if removals:
            await asyncio.wait(removals)

    async def _remove(self, under_way: _UnderWay, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            if not under_way.is_marked:
                await loop.run_in_executor(self._executor, under_way.removal.mark)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(under_way.is_over.wait(), delay_s)
            if not under_way.is_abandoned:
                await loop.run_in_executor(self._executor, under_way.removal.remove)
        except StorageError as error:
            # What is still there without its .deleted name is found by the next start, and expires again.
            logger.error("cannot remove deleted segments: %s", error)
