"""Group commit: one fsync serves many acknowledgements.

While a sync runs in a thread, appends go on and their acknowledgements queue up. The next sync begins when the first
has ended and serves all of them. So under load the number of syncs is bounded by the disk and not by the number of
requests.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.storage.log.log import Log


class GroupCommit:
    """Syncs one log and completes the acknowledgements that wait for it. Owns these acknowledgements.

    Between calls a sync runs if and only if an acknowledgement waits; ``on_flushed`` has been called for every sync
    that succeeded.
    """

    __slots__ = ("_executor", "_log", "_on_flushed", "_running", "_waiting")

    def __init__(self, log: Log, executor: Executor, on_flushed: Callable[[], None]) -> None:
        self._log = log
        self._executor = executor
        self._on_flushed = on_flushed
        self._waiting: list[tuple[Offset, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    def flushed(self, up_to: Offset) -> asyncio.Future[None]:
        """Returns a future that is done when everything below ``up_to`` is on the disk. It fails with StorageError when
        the disk refuses. It need not be awaited."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_mark_retrieved)
        if self._log.flushed_offset >= up_to and self._log.failure is None and not self._log.is_config_waiting:
            future.set_result(None)
            return future
        self._waiting.append((up_to, future))
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        return future

    @property
    def is_idle(self) -> bool:
        return self._running is None

    async def idle(self) -> None:
        """Returns when no sync is in progress."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        served: list[tuple[Offset, asyncio.Future[None]]] = []
        try:
            while self._waiting:
                served, self._waiting = self._waiting, []
                try:
                    await self._sync()
                except StorageError as error:
                    self._fail(served, error)
                else:
                    self._on_flushed()
                    self._complete(served)
        finally:
            # Cancelled, or failed unexpectedly: no acknowledgement may wait for ever.
            self._running = None
            self._fail([*served, *self._waiting], StorageError("the sync was given up"))
            self._waiting = []

    async def _sync(self) -> None:
        plan = self._log.flush_plan()
        if plan is None:
            return
        failure = StorageError("the sync was given up")
        is_done = False
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, plan.run)
            is_done = True
        except StorageError as error:
            failure = error
            raise
        finally:
            if not is_done:
                self._log.flush_failed(plan, failure)
        self._log.flushed(plan)

    def _complete(self, served: list[tuple[Offset, asyncio.Future[None]]]) -> None:
        for up_to, future in served:
            if self._log.flushed_offset < up_to:
                self._waiting.append((up_to, future))
            elif not future.done():
                future.set_result(None)

    @staticmethod
    def _fail(served: list[tuple[Offset, asyncio.Future[None]]], error: StorageError) -> None:
        for _, future in served:
            if not future.done():
                future.set_exception(error)


def _mark_retrieved(future: "asyncio.Future[None]") -> None:
    """Retrieves the exception, so that asyncio does not log it: the log itself records the failure."""
    if not future.cancelled():
        future.exception()
