"""Cutting the logs of followed partitions: in a thread, while nobody else uses the log.

To know the producers of a cut log, the headers behind the newest snapshot have to be read again: of a segment with
small batches that takes seconds. So the event loop only begins and ends a cut. In between ``log.is_being_cut`` is true:

- reads are refused with KAFKA_STORAGE_ERROR: consumers that read from this replica ask again, or another one;
- the partition takes no role. Were it elected meanwhile, it would append to files that a thread is cutting. It leads,
  or follows somebody else, when the cut has ended; until then clients are told NOT_LEADER_OR_FOLLOWER;
- syncs, retention and compaction leave it alone, and whoever takes its files away waits for the end.

A cut that was begun is carried out, also when the broker is stopping or the partition is deleted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.base.loop.supervisor import Supervisor
from skep.replication.partition.partition import Partition


class Truncations:
    """Owns the cuts that are under way, at most one for each partition.

    ``write_checkpoints`` lowers what the checkpoints on disk promise; ``ended`` is told when the partition may take a
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
        """Begins to cut the log to ``offset``. The future fails with StorageError when the disk refuses."""
        return self._begin(partition, self._truncate(partition, offset))

    def start_anew(self, partition: Partition, offset: Offset) -> "asyncio.Future[None]":
        """Begins to replace the log by an empty one that begins at ``offset``."""
        return self._begin(partition, self._start_anew(partition, offset))

    async def idle(self, partition: Partition) -> None:
        """Returns when the partition is not being cut."""
        while (under_way := self._under_way.get(partition)) is not None:
            await asyncio.wait([under_way])

    async def all_idle(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way.values())

    def _begin(self, partition: Partition, cut: Awaitable[None]) -> "asyncio.Future[None]":
        assert not partition.log.is_being_cut, "one cut at a time"
        partition.log.is_being_cut = True
        # Not the caller's task: a fetcher that is stopped in the middle must not leave half a cut.
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._under_way[partition] = ended
        self._supervisor.spawn(f"cut {partition.topic_partition}", self._run(partition, cut, ended))
        return ended

    async def _run(self, partition: Partition, cut: Awaitable[None], ended: "asyncio.Future[None]") -> None:
        failure: Exception = StorageError(f"{partition.topic_partition}: the cut was given up")
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
        log = partition.log
        cut = log.begin_cut(offset)
        if isinstance(cut, int):
            await self._start_anew(partition, cut)
        elif cut is not None:
            # At once: a checkpoint that is collected meanwhile is not to promise more.
            partition.high_watermark = min(partition.high_watermark, max(cut.end_offset, log.log_start_offset))
            if cut.must_write_checkpoints:
                await self._lower_checkpoints(partition)
            try:
                await self._in_thread(lambda: log.cut(cut))
            finally:
                if not log.is_half_cut:
                    log.end_cut()

    async def _start_anew(self, partition: Partition, offset: Offset) -> None:
        """As ``ReplicaLog.start_anew_at``: the directory is renamed, and a first segment made, here and now, for that
        reads nothing and waits for nothing; the sync in between runs in a thread."""
        log = partition.log
        if log.begin_anew():
            await self._lower_checkpoints(partition)
        try:
            if log.empty_at(offset):
                await self._in_thread(log.sync_move)
            log.begin()
        finally:
            log.end_cut()

    async def _lower_checkpoints(self, partition: Partition) -> None:
        try:
            await self._write_checkpoints()
        except BaseException:
            partition.log.end_cut()
            raise

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Cancelled, it waits for the thread first: the log is no one's to use before."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
