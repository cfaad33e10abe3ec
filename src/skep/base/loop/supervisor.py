"""Background tasks with an owner: none is lost, none fails silently, and all end when the owner closes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from skep.base.errors import StorageError

logger = logging.getLogger(__name__)

LONGEST_SLEEP_MS = 1000


class Supervisor:
    """Owns the tasks spawned through it.

    Between calls every task in the set is running. A task that fails is logged with its name and traceback and leaves
    the set. ``close`` cancels the running tasks and waits for them. If ``close`` itself is cancelled, the tasks are
    cancelled but perhaps not finished.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(self, interval_ms: Callable[[], int], job: Callable[[], Awaitable[None]]) -> None:
        """Runs ``job`` repeatedly. A run that fails is logged, and the next one follows as usual."""
        name = getattr(job, "__name__", "job")

        async def loop() -> None:
            while True:
                await _sleep(interval_ms)
                try:
                    await job()
                except StorageError as error:
                    logger.error("%s: %s", name, error)
                except Exception:
                    logger.exception("%s failed; it will run again", name)

        self.spawn(name, loop())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task %s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sleep(interval_ms: Callable[[], int]) -> None:
    """Sleeps in slices, so that an interval that is shortened meanwhile counts from the same start."""
    slept_ms = 0
    while (left_ms := interval_ms() - slept_ms) > 0:
        slice_ms = min(left_ms, LONGEST_SLEEP_MS)
        await asyncio.sleep(slice_ms / 1000)
        slept_ms += slice_ms
