"""Compacts logs: chooses the next log, has the helper process run a pass, and swaps the result in.

One pass at a time, the dirtiest log first, until none is due. The helper reads and writes files. The list of segments
that the log reads from changes here, in one step of the event loop, so a reader gets a batch from the old segments or
from the new ones and notices nothing: offsets are the same in both.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Protocol, TypeVar

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.base.loop.slicer import Slicer, Work
from skep.replication.partition.partition import Partition
from skep.replication.upkeep.compaction_process import CompactionProcess, DamagedLog, HelperFailed
from skep.replication.upkeep.segment_deletion import SegmentDeletion
from skep.storage.compaction.compaction_plan import Cleanable, CleanedGroup, PassResult, cleanable, request_for
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.segment_swap import commit, remove_leftovers

logger = logging.getLogger(__name__)

RETRY_S = 60.0
"""How long after a failed pass the log is tried again."""
IDLE_MS = 60_000
"""After this time without a pass the helper process is ended."""
_NO_LIMIT = float(1 << 60)

T = TypeVar("T")


class HalfSwapped(Exception):
    """New segments are in use, but not all files have their final names."""


class Holder(Protocol):
    """What is needed of ``ReplicaManager``."""

    slicer: Slicer

    def holds(self, partition: Partition) -> bool: ...

    async def write_checkpoints(self) -> None: ...


class Compactor:
    """Owns the helper process. ``_partition`` is the partition whose pass is in progress.

    During the pass no segment of that partition is deleted. ``_paused`` has the partitions that could not be compacted,
    and the moment at which they are tried again.
    """

    def __init__(
        self,
        directory: LogDirectory,
        clock: Clock,
        executor: Executor,
        segment_deletion: SegmentDeletion,
        holder: Holder,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._executor = executor
        self._segment_deletion = segment_deletion
        self._holder = holder
        self._process = CompactionProcess(directory.path, executor)
        self._partition: Partition | None = None
        self._ended = asyncio.Event()
        self._last_pass_s = 0.0
        self._paused: dict[Partition, float] = {}

    async def compact_due(self, partitions: Iterable[Partition], config: BrokerConfig) -> None:
        """Runs passes until nothing is due. When cancelled, the log has either its old segments or its new ones."""
        known = list(partitions)
        now_s = self._clock.monotonic()
        self._paused = {one: until for one, until in self._paused.items() if until > now_s and self._holder.holds(one)}
        while (chosen := await self._holder.slicer.finish(self._dirtiest(known))) is not None:
            # Checked once more, without an await before the pass: segments may have been deleted since the first check.
            if (what := self._due(chosen)) is not None:
                await self._pass(chosen, what, config)
        if (self._clock.monotonic() - self._last_pass_s) * 1000 > IDLE_MS:
            await self._process.close()

    def _dirtiest(self, partitions: Iterable[Partition]) -> Work[Partition | None]:
        dirtiest, highest_ratio = None, -1.0
        for partition in partitions:
            what = self._due(partition)
            if what is not None and what.dirty_ratio > highest_ratio:
                dirtiest, highest_ratio = partition, what.dirty_ratio
            yield
        return dirtiest

    def _due(self, partition: Partition) -> Cleanable | None:
        """Returns what to compact of the partition now, None if nothing is due."""
        log = partition.log
        is_left_alone = partition in self._paused or log.is_being_cut
        if is_left_alone or not log.config.is_compacted or not self._holder.holds(partition):
            return None
        cleaned_up_to = self._directory.cleaned_up_to(log.topic_partition)
        what = cleanable(log, cleaned_up_to, partition.last_stable_offset, self._clock.now_ms())
        return what if what.is_due(log.config) else None

    async def _pass(self, partition: Partition, what: Cleanable, config: BrokerConfig) -> None:
        name = partition.topic_partition
        self._partition = self._segment_deletion.spared = partition
        self._ended.clear()
        begun = self._clock.monotonic()
        try:
            result = await self._compact(partition, what, config)
        except DamagedLog as error:
            self._pause(partition, f"the log is damaged and is no longer compacted: {error}")
            await self._clear(partition)
        except HalfSwapped as error:
            self._pause(partition, f"not compacted until the broker is restarted: {error}")
        except (StorageError, HelperFailed) as error:
            if self._holder.holds(partition):
                self._pause(partition, f"compaction failed, retrying later: {error}", RETRY_S)
                await self._clear(partition)
        else:
            _log_result(str(name), result, self._clock.monotonic() - begun)
        finally:
            self._partition = self._segment_deletion.spared = None
            self._last_pass_s = self._clock.monotonic()
            self._ended.set()

    async def _clear(self, partition: Partition) -> None:
        """Removes what a failed pass has written: the disk may be full of it."""
        await self._process.close()
        try:
            await self._in_thread(lambda: remove_leftovers(self._directory.files, partition.log.path))
        except StorageError as error:
            logger.error("%s: cannot remove the files of a failed compaction: %s", partition.topic_partition, error)

    def _pause(self, partition: Partition, why: str, seconds: float = math.inf) -> None:
        self._paused[partition] = self._clock.monotonic() + seconds
        logger.error("%s: %s", partition.topic_partition, why)

    async def _compact(self, partition: Partition, what: Cleanable, config: BrokerConfig) -> PassResult:
        log, directory = partition.log, self._directory
        await self._in_thread(lambda: remove_leftovers(directory.files, log.path))
        # First the recovery point, and an entry that there are passes: otherwise recovery takes a missing offset for
        # damage.
        directory.note_cleaned(log.topic_partition, what.first_dirty_offset)
        await self._holder.write_checkpoints()
        rate = config.log_cleaner_io_max_bytes_per_second
        prepare = partial(
            request_for,
            log,
            what,
            log.producers.last_records(),
            high_watermark=partition.high_watermark,
            now_ms=self._clock.now_ms(),
            map_bytes=config.log_cleaner_dedupe_buffer_size,
            max_bytes_per_second=int(rate) if rate < _NO_LIMIT else 0,
        )
        request = await self._in_thread(prepare)
        self._check_held(partition)
        result = await self._process.run(request, lambda group: self._swap(partition, group))
        self._check_held(partition)
        directory.note_cleaned(log.topic_partition, Offset(result.clean_up_to))
        await self._holder.write_checkpoints()
        return result

    async def _swap(self, partition: Partition, group: CleanedGroup) -> None:
        log, files = partition.log, self._directory.files
        now_ms = self._clock.now_ms()
        new = await self._in_thread(lambda: commit(files, log.path, group.outputs, now_ms))
        self._check_held(partition)
        sources = set(group.sources)
        swap = log.replace([segment for segment in log.segments if segment.base_offset in sources], new)
        try:
            await self._in_thread(swap.mark)
        except StorageError as error:
            # The log reads the right files, under names that the next start corrects.
            raise HalfSwapped(str(error)) from error
        self._segment_deletion.remove_later(partition, swap)

    def _check_held(self, partition: Partition) -> None:
        """Must be called after each await: the partition may have been deleted meanwhile, and another may have its
        directory."""
        if not self._holder.holds(partition):
            raise HelperFailed("the partition was deleted")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in a thread. When cancelled it waits for the thread first: nothing may close the log's files
        before that."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    async def abandon(self, partition: Partition) -> None:
        """Returns when nothing works on the partition's files any more. A pass over it is cancelled."""
        if self._partition is partition:
            self._process.kill()
            await self._ended.wait()

    async def stop(self) -> None:
        await self._process.close()


def _log_result(name: str, result: PassResult, seconds: float) -> None:
    logger.info(
        "%s: compacted %d bytes to %d, %d records to %d, up to offset %d, in %.1f s",
        name,
        result.bytes_before,
        result.bytes_after,
        result.records_before,
        result.records_after,
        result.clean_up_to,
        seconds,
    )
    if result.keyless_records:
        logger.warning("%s: compaction dropped %d records without a key", name, result.keyless_records)
