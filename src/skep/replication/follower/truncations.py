"""Truncates the logs of followed partitions: in a thread, while nothing else uses the log.

To know the producers of a truncated log, the batch headers after the newest snapshot have to be read again, which takes
seconds in a segment of small batches. So the event loop only begins and ends a truncation. In between
``log.is_being_cut`` is true:

- reads are refused with KAFKA_STORAGE_ERROR: consumers of this replica retry, or read from another one;
- the partition takes no role. If it became the leader, it would append to files that a thread is truncating. It leads,
  or follows another leader, when the truncation has ended; until then clients get NOT_LEADER_OR_FOLLOWER;
- syncs, retention and compaction skip the log, and a deletion of its files waits for the end.

A truncation that was begun is completed, even when the broker is stopping or the partition is deleted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.base.loop.supervisor import Supervisor
from skep.replication.partition.partition import Partition


class Truncations:
    """Owns the truncations in progress, at most one per partition.

    ``write_checkpoints`` lowers the offsets in the checkpoint files; ``ended`` is called when the partition may take a
    role again.
    """

    def __init__(
        self,
        executor: Executor,
        supervisor: Supervisor,
        write_checkpoints: Callable[[], Awaitable[None]],
        ended: Callable[[Partition], None],
    ) -> None:
        self._executor = executor
        self._supervisor = supervisor
        self._write_checkpoints = write_checkpoints
        self._ended = ended
        self._under_way: dict[Partition, asyncio.Future[None]] = {}

    def truncate(self, partition: Partition, offset: Offset) -> "asyncio.Future[None]":
        """Begins to truncate the log to ``offset``. The future fails with StorageError when the disk refuses."""
        return self._begin(partition, self._truncate(partition, offset))

    def start_over(self, partition: Partition, offset: Offset) -> "asyncio.Future[None]":
        """Begins to replace the log by an empty one that starts at ``offset``."""
        return self._begin(partition, self._start_over(partition, offset))

    async def idle(self, partition: Partition) -> None:
        """Returns when the partition is not being truncated."""
        while (under_way := self._under_way.get(partition)) is not None:
            await asyncio.wait([under_way])

    async def all_idle(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way.values())

    def _begin(self, partition: Partition, cut: Awaitable[None]) -> "asyncio.Future[None]":
        assert not partition.log.is_being_cut, "one truncation at a time"
        partition.log.is_being_cut = True
        # A task of its own: a fetcher that is stopped meanwhile must not leave a log half truncated.
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._under_way[partition] = ended
        self._supervisor.spawn(f"truncate {partition.topic_partition}", self._run(partition, cut, ended))
        return ended

    async def _run(self, partition: Partition, cut: Awaitable[None], ended: "asyncio.Future[None]") -> None:
        failure: Exception = StorageError(f"{partition.topic_partition}: the truncation was given up")
        is_done = False
        try:
            await cut
            is_done = True
        except StorageError as error:
            failure = error
        finally:
            del self._under_way[partition]
            partition.log.is_being_cut = False
            partition.truncated()
            if not ended.done():
                ended.set_result(None) if is_done else ended.set_exception(failure)
            self._ended(partition)

    async def _truncate(self, partition: Partition, offset: Offset) -> None:
        log, truncator = partition.log, partition.log.truncator
        cut = truncator.begin_cut(offset)
        if isinstance(cut, int):
            await self._start_over(partition, cut)
        elif cut is not None:
            # Now, before the await: a checkpoint that is collected meanwhile must not contain a higher offset.
            partition.high_watermark = min(partition.high_watermark, max(cut.end_offset, log.log_start_offset))
            if cut.must_write_checkpoints:
                await self._lower_checkpoints(partition)
            try:
                await self._in_thread(lambda: truncator.cut(cut))
            finally:
                if not log.is_half_cut:
                    truncator.end_cut()

    async def _start_over(self, partition: Partition, offset: Offset) -> None:
        """As ``Truncator.start_over_at``. Renaming the directory and creating the first segment read nothing and wait
        for nothing, so they run here; the sync between them runs in a thread."""
        truncator = partition.log.truncator
        if truncator.begin_start_over():
            await self._lower_checkpoints(partition)
        try:
            if truncator.empty_at(offset):
                await self._in_thread(truncator.sync_move)
            truncator.create_segment()
        finally:
            truncator.end_cut()

    async def _lower_checkpoints(self, partition: Partition) -> None:
        try:
            await self._write_checkpoints()
        except BaseException:
            partition.log.truncator.end_cut()
            raise

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Runs ``work`` in a thread. When cancelled it waits for the thread first: nothing may use the log before
        that."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
