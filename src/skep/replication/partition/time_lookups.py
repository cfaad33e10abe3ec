"""Looking up times in logs: ListOffsets by time.

The indexes narrow most lookups down to a few batches. Some have to look at every header of a log: the largest timestamp
below the last stable offset, for one. So they run in threads of their own, a few at a time. The others wait here, where
whoever leaves is taken out of the line; a search that nobody waits for any more ends at its next look.
"""

import asyncio
import threading
from concurrent.futures import Executor

from skep.base.errors import StorageError
from skep.base.ids import Offset
from skep.base.loop.threads import SEARCHES
from skep.storage.log.log import Log
from skep.storage.log.timestamps import SearchGivenUp, TimestampOffset

MAX_TIMESTAMP = -3
STOPPING = "the search was given up, the broker is stopping"


class TimeLookups:
    """Owns the searches that are under way. After ``stop`` none is begun, and those that run end soon."""

    def __init__(self, executor: Executor, at_once: int = SEARCHES) -> None:
        self._executor = executor
        self._turns = asyncio.Semaphore(at_once)
        self._under_way: set[threading.Event] = set()
        self._is_stopped = False

    async def find(self, log: Log, timestamp: int, up_to: Offset) -> TimestampOffset | None:
        """The first record at or after ``timestamp`` and before ``up_to``; for MAX_TIMESTAMP the one with the largest.

        StorageError when the disk refuses, or when the broker is stopping. Cancelled, it gives its place to the next
        when the thread has noticed.
        """
        async with self._turns:
            if self._is_stopped:
                raise StorageError(STOPPING)
            is_given_up = threading.Event()
            self._under_way.add(is_given_up)
            search = asyncio.get_running_loop().run_in_executor(
                self._executor, _search, log, timestamp, up_to, is_given_up
            )
            try:
                return await asyncio.shield(search)
            except SearchGivenUp:
                raise StorageError(STOPPING) from None
            except asyncio.CancelledError:
                is_given_up.set()
                await asyncio.wait([search])
                raise
            finally:
                self._under_way.discard(is_given_up)

    def stop(self) -> None:
        self._is_stopped = True
        for is_given_up in self._under_way:
            is_given_up.set()


def _search(log: Log, timestamp: int, up_to: Offset, is_given_up: threading.Event) -> TimestampOffset | None:
    if timestamp == MAX_TIMESTAMP:
        return log.latest_timestamp(up_to=up_to, is_given_up=is_given_up.is_set)
    return log.offset_for_timestamp(timestamp, up_to=up_to, is_given_up=is_given_up.is_set)
