"""Group commit: many acknowledgements wait, one fsync serves them all.

While a sync runs in a thread, appends go on and their acknowledgements queue up; the next sync, begun when the first
ends, takes all of them. So under load the number of syncs is bounded by the disk and not by the number of requests.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.storage.log.log import Log


class GroupCommit:
    """Syncs one log and tells who waits for it.

    Owns the waiting acknowledgements. Between calls a sync runs if and only if somebody waits; ``on_flushed`` has been
    called for every sync that succeeded.
    """

    __slots__ = ("_executor", "_log", "_on_flushed", "_running", "_waiting")

    def __init__(self, log: Log, executor: Executor, on_flushed: Callable[[], None]) -> None:
        self._log = log
        self._executor = executor
        self._on_flushed = on_flushed
        self._waiting: list[tuple[Offset, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    def flushed(self, up_to: Offset) -> asyncio.Future[None]:
        """Done when everything below ``up_to`` is on the disk; fails with StorageError when the disk refuses.

        Whoever does not care need not await it.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_look_at)
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
        """Returns when no sync is under way."""
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
                    self._answer(served)
        finally:
            # Stopped, or failed in a way that nobody foresaw: in no case may somebody wait for ever.
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

    def _answer(self, served: list[tuple[Offset, asyncio.Future[None]]]) -> None:
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


def _look_at(future: "asyncio.Future[None]") -> None:
    """A failure that nobody awaits is no news: the log itself remembers it."""
    if not future.cancelled():
        future.exception()
