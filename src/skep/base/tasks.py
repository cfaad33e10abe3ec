"""Background tasks with an owner: none is lost, none fails silently, all end when the owner closes."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Supervisor:
    """Owns the tasks spawned through it.

    Between calls every task in the set is running; one that fails is logged with its name and traceback and
    leaves the set. ``close`` cancels what runs and waits for it; cancelling ``close`` itself leaves tasks cancelled
    but perhaps not finished.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task %s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
