"""Looks up offsets by timestamp (ListOffsets).

The indexes narrow most lookups down to a few batches. Some have to read every batch header of a log, for example the
largest timestamp below the last stable offset. So lookups run in threads of their own, a few at a time. The others wait
here, and a lookup whose client disconnects leaves the queue; a running search that is no longer wanted stops at its
next check.
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
STOPPING = "the search was stopped because the broker is stopping"


class TimeLookups:
    """Owns the searches in progress. After ``stop`` none is begun, and running ones end soon."""

    def __init__(self, executor: Executor, at_once: int = SEARCHES) -> None:
        self._executor = executor
        self._turns = asyncio.Semaphore(at_once)
        self._under_way: set[threading.Event] = set()
        self._is_stopped = False

    async def find(self, log: Log, timestamp: int, up_to: Offset) -> TimestampOffset | None:
        """Returns the first record at or after ``timestamp`` and before ``up_to``; for MAX_TIMESTAMP the one with the
        largest.

        Raises StorageError when the disk refuses or the broker is stopping. When cancelled, it frees its slot as soon
        as the thread has noticed.
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
                # asyncio logs an exception that nobody has asked for, with its traceback.
                search.add_done_callback(_take_exception)
                await asyncio.wait([search])
                raise
            finally:
                self._under_way.discard(is_given_up)

    def stop(self) -> None:
        self._is_stopped = True
        for is_given_up in self._under_way:
            is_given_up.set()


def _take_exception(search: "asyncio.Future[TimestampOffset | None]") -> None:
    if not search.cancelled():
        search.exception()


def _search(log: Log, timestamp: int, up_to: Offset, is_given_up: threading.Event) -> TimestampOffset | None:
    if timestamp == MAX_TIMESTAMP:
        return log.latest_timestamp(up_to=up_to, is_given_up=is_given_up.is_set)
    return log.offset_for_timestamp(timestamp, up_to=up_to, is_given_up=is_given_up.is_set)
