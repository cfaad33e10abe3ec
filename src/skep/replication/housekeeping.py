"""What a broker does by itself, on timers: sync, check retention, compact, watch the disk, write checkpoints, forget
producers.

Each job is a loop of its own, so that one that waits for the disk does not hold up another. A job that fails on one
partition logs it and goes on with the next; it comes again.
"""

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import StorageError
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Work
from skep.base.loop.supervisor import Supervisor
from skep.replication.partition.partition import Partition
from skep.replication.replica_manager import Replicas
from skep.storage.directory.disk_watch import DiskDecision, decide, segments_to_force
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.retention import SegmentView, view_of

logger = logging.getLogger(__name__)

FLUSH_CHECK_INTERVAL_MS = 250
PRODUCER_CHECK_INTERVAL_MS = 600_000
LOOKS_PER_STEP = 100

T = TypeVar("T")


class Housekeeping:
    """Owns the timers. ``config`` may be replaced at any time; a loop looks at it each time it wakes."""

    def __init__(self, replicas: Replicas, directory: LogDirectory, config: BrokerConfig, clock: Clock) -> None:
        self.config = config
        self._replicas = replicas
        self._directory = directory
        self._clock = clock
        self._supervisor = Supervisor()
        self._last_decision = DiskDecision(False, 0, False)
        self.on_disk_checked: Callable[[bool], None] = _ignore
        """Told at each check whether writes are accepted."""

    def start(self) -> None:
        """Looks at once whether the disk can be written to, before anybody tries, and begins the timers."""
        self._refuse_or_accept()
        repeat = self._supervisor.repeat
        repeat(lambda: FLUSH_CHECK_INTERVAL_MS, self.flush_due)
        repeat(lambda: self.config.log_retention_check_interval_ms, self.check_retention)
        repeat(lambda: self.config.disk_check_interval_ms, self.check_disk)
        repeat(self._checkpoint_interval_ms, self._replicas.write_checkpoints)
        repeat(lambda: PRODUCER_CHECK_INTERVAL_MS, self.expire_producers)
        repeat(lambda: self.config.log_cleaner_backoff_ms, self.compact)

    async def stop(self) -> None:
        await self._supervisor.close()
        await self._replicas.compactor.stop()

    def _checkpoint_interval_ms(self) -> int:
        """The shorter one. All checkpoints are written together: they know as one of which partitions they speak."""
        return min(self.config.replica_high_watermark_checkpoint_interval_ms, self.config.flush_checkpoint_interval_ms)

    async def flush_due(self) -> None:
        for partition in await self._run(self._half_cut_or_flushed()):
            await self._replicas.end_truncation(partition)
            if self._replicas.holds(partition) and partition.log.flush_is_due(self._clock.now_ms()):
                partition.flush()

    def _half_cut_or_flushed(self) -> Work[list[Partition]]:
        """Begins the syncs that are due; returns the partitions whose logs have to be cut before that."""
        half_cut = []
        for count, partition in enumerate(self._replicas.open_partitions()):
            if partition.log.is_half_cut:
                half_cut.append(partition)
            elif partition.log.flush_is_due(self._clock.now_ms()) and self._replicas.holds(partition):
                partition.flush()
                yield
            if count % LOOKS_PER_STEP == 0:
                yield
        return half_cut

    async def check_retention(self) -> None:
        """Rolls segments that are old enough, and deletes expired ones if this is the hour for it."""
        await self._run(self._clean(delete_expired=self._decide().delete_expired, at_once=False))
        await self._replicas.remove_leftovers()
        await self._replicas.departures.note_what_is_gone()

    def _clean(self, *, delete_expired: bool, at_once: bool) -> Work[int]:
        """How many bytes were deleted; ``at_once`` without the delay for readers."""
        freed = 0
        for partition in self._replicas.all_partitions():
            try:
                partition.log.roll_if_due(self._clock.now_ms())
                if delete_expired:
                    freed += self._replicas.cleaner.delete_expired(partition, at_once=at_once)
            except StorageError as error:
                logger.error("%s: %s", partition.topic_partition, error)
            yield
        return freed

    async def check_disk(self) -> None:
        decision = self._refuse_or_accept()
        self._replicas.open_what_failed()
        if self._directory.disk_space().used_ratio > self.config.disk_clean_ratio:
            await self._clean_up(decision)

    def _refuse_or_accept(self) -> DiskDecision:
        decision = self._decide()
        before, self._last_decision = self._last_decision, decision
        if decision.refuse_produce:
            self._replicas.refuse_writes(
                f"the disk is more than {self.config.disk_refuse_ratio:.0%} full (skep.disk.refuse.ratio)"
            )
        else:
            self._replicas.refuse_writes(None)
        if decision.refuse_produce != before.refuse_produce:
            logger.warning(
                "the disk is %s full: produce is %s",
                f"{self._directory.disk_space().used_ratio:.1%}",
                "refused" if decision.refuse_produce else "accepted again",
            )
        self.on_disk_checked(not decision.refuse_produce)
        return decision

    async def _clean_up(self, decision: DiskDecision) -> None:
        """Expired segments first, without delay; what they do not free, if anything, the oldest of the others do.

        Those that went at the last check of retention, and wait for their delay, count too: they are still on the disk.
        """
        logger.warning("the disk is %.1f %% full, deleting", 100 * self._directory.disk_space().used_ratio)
        bytes_to_free = decision.bytes_to_free - self._replicas.cleaner.hurry()
        bytes_to_free -= await self._run(self._clean(delete_expired=True, at_once=True))
        if bytes_to_free <= 0:
            return
        # Of a compacted log every record may be the only one of its key: these are not for making room. Nor are those
        # of which other brokers have copies, and maybe room for them.
        partitions = {
            p.topic_partition: p
            for p in await self._run(_listed(self._replicas.all_partitions()))
            if self._replicas.holds(p) and p.is_leader and p.in_sync is None and p.log.config.expires
        }
        views = await self._run(_views(partitions))
        for name, count in segments_to_force(views, bytes_to_free).items():
            partition = partitions[name]
            # As it was when it was looked at: what has gone since is room enough for now.
            if self._replicas.holds(partition) and partition.log.segments[0].base_offset == views[name][0].base_offset:
                self._replicas.cleaner.delete_oldest(partition, count)

    def _decide(self) -> DiskDecision:
        hour = datetime.datetime.fromtimestamp(self._clock.now_ms() / 1000).hour
        return decide(self._directory.disk_space(), self.config, hour)

    async def expire_producers(self) -> None:
        await self._run(self._expire_producers(self._clock.now_ms() - self.config.producer_id_expiration_ms))

    def _expire_producers(self, before_ms: int) -> Work[None]:
        for partition in self._replicas.open_partitions():
            if not partition.log.is_being_cut:
                partition.log.expire_producers(before_ms)
            yield

    async def compact(self) -> None:
        """Compacts what is due, one log after the other."""
        if self.config.log_cleaner_enable:
            partitions = await self._run(_listed(self._replicas.compacted_partitions()))
            await self._replicas.compactor.compact_due(partitions, self.config)

    async def _run(self, work: Work[T]) -> T:
        return await self._replicas.slicer.finish(work)


def _listed(partitions: Iterable[Partition]) -> Work[list[Partition]]:
    """All of them; opening a log that was not used yet reads its directory, so others get a turn in between."""
    opened = []
    for partition in partitions:
        opened.append(partition)
        yield
    return opened


def _views(partitions: Mapping[TopicPartition, Partition]) -> Work[dict[TopicPartition, list[SegmentView]]]:
    """Of each the segments that may be forced and, last, one that may not: the first that has records past the high
    watermark."""
    views = {}
    for name, partition in partitions.items():
        views[name] = [view for view in view_of(partition.log) if view.base_offset <= partition.high_watermark]
        yield
    return views


def _ignore(is_writable: bool) -> None:
    """There is nobody to tell."""
