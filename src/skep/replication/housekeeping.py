"""Timers of a broker: syncs, retention, compaction, disk checks, checkpoints, expiry of producers.

Each job is a loop of its own, so that one that waits for the disk does not hold up another. A job that fails for one
partition logs the error and continues with the next one; the partition is tried again the next time.
"""

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.config.coordinator_config import SHARE_GROUP_STATE
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import StorageError
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Work
from skep.base.loop.supervisor import Supervisor
from skep.replication.partition.partition import Partition
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.disk_watch import DiskDecision, decide, segments_to_force
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.retention import SegmentView, view_of

logger = logging.getLogger(__name__)

FLUSH_CHECK_INTERVAL_MS = 250
PRODUCER_CHECK_INTERVAL_MS = 600_000
LOOKS_PER_STEP = 100

T = TypeVar("T")


class Housekeeping:
    """Owns the timers. Each loop reads the options in force when it wakes."""

    def __init__(self, replicas: ReplicaManager, directory: LogDirectory, config: CurrentConfig, clock: Clock) -> None:
        self._config = config
        self._replicas = replicas
        self._directory = directory
        self._clock = clock
        self._supervisor = Supervisor()
        self._last_decision = DiskDecision(False, 0, False)
        self.on_disk_checked: Callable[[bool], None] = _ignore
        """Called at each check with whether writes are accepted."""

    @property
    def config(self) -> BrokerConfig:
        """The options in force."""
        return self._config.value

    def start(self) -> None:
        """Checks at once whether the disk can be written to, and starts the timers."""
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
        """The shorter of the two intervals. All checkpoint files are written together: they describe the same
        partitions."""
        config = self.config
        return min(config.cluster.replica_high_watermark_checkpoint_interval_ms, config.flush_checkpoint_interval_ms)

    async def flush_due(self) -> None:
        for partition in await self._run(self._half_cut_or_flushed()):
            await self._replicas.end_truncation(partition)
            if self._replicas.holds(partition) and partition.log.flush_is_due(self._clock.now_ms()):
                partition.flush()

    def _half_cut_or_flushed(self) -> Work[list[Partition]]:
        """Begins the syncs that are due. Returns the partitions whose logs have to be truncated before that."""
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
        await self._replicas.replica_deletion.confirm_deletions()

    def _clean(self, *, delete_expired: bool, at_once: bool) -> Work[int]:
        """Returns the number of deleted bytes. ``at_once`` skips the delay for readers."""
        freed = 0
        for partition in self._replicas.all_partitions():
            try:
                partition.log.roll_if_due(self._clock.now_ms())
                if delete_expired:
                    freed += self._replicas.segment_deletion.delete_expired(partition, at_once=at_once)
            except StorageError as error:
                logger.error("%s: %s", partition.topic_partition, error)
            yield
        return freed

    async def check_disk(self) -> None:
        decision = self._refuse_or_accept()
        self._replicas.retry_failed_opens()
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
        """Deletes expired segments first, without delay. If they do not free enough, the oldest other segments follow.

        Segments that expired at the last check and wait for their delay count too: they are still on the disk.
        """
        logger.warning("the disk is %.1f %% full, deleting segments", 100 * self._directory.disk_space().used_ratio)
        bytes_to_free = decision.bytes_to_free - self._replicas.segment_deletion.hurry()
        bytes_to_free -= await self._run(self._clean(delete_expired=True, at_once=True))
        if bytes_to_free <= 0:
            return
        # In a compacted log every record may be the only one of its key, so these logs are not used to make room. Nor
        # are those with copies on other brokers, which may have room for them, nor the state of share groups.
        partitions = {
            p.topic_partition: p
            for p in await self._run(_listed(self._replicas.all_partitions()))
            if self._replicas.holds(p) and p.is_leader and p.in_sync is None and p.log.config.expires
            if p.topic_partition.topic != SHARE_GROUP_STATE
        }
        views = await self._run(_views(partitions))
        for name, count in segments_to_force(views, bytes_to_free).items():
            partition = partitions[name]
            # Only if the log is as it was when it was checked: what has been deleted since is enough room for now.
            if self._replicas.holds(partition) and partition.log.segments[0].base_offset == views[name][0].base_offset:
                self._replicas.segment_deletion.delete_oldest(partition, count)

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
        """Compacts the logs that are due, one after the other."""
        if self.config.log_cleaner_enable:
            partitions = await self._run(_listed(self._replicas.compacted_partitions()))
            await self._replicas.compactor.compact_due(partitions, self.config)

    async def _run(self, work: Work[T]) -> T:
        return await self._replicas.slicer.finish(work)


def _listed(partitions: Iterable[Partition]) -> Work[list[Partition]]:
    """Returns all of them. Opening an unused log reads its directory, so other work gets a turn in between."""
    opened = []
    for partition in partitions:
        opened.append(partition)
        yield
    return opened


def _views(partitions: Mapping[TopicPartition, Partition]) -> Work[dict[TopicPartition, list[SegmentView]]]:
    """Returns for each log the segments that may be deleted by force and, last, the first segment that may not: it has
    records past the high watermark."""
    views = {}
    for name, partition in partitions.items():
        views[name] = [view for view in view_of(partition.log) if view.base_offset <= partition.high_watermark]
        yield
    return views


def _ignore(is_writable: bool) -> None:
    """The default callback."""
