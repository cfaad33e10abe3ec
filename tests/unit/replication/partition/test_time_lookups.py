"""Searches by time: a few at once, in line, and given up when nobody waits for them."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from skep.base.errors import StorageError
from skep.replication.partition.time_lookups import TimeLookups
from skep.storage.log.timestamps import SearchGivenUp


class EndlessLog:
    """A search in it ends when it is told that nobody waits; ``begun`` and ``ended`` count them."""

    def __init__(self):
        self.begun = 0
        self.ended = 0
        self.is_running = threading.Event()

    def offset_for_timestamp(self, timestamp, *, up_to, is_given_up):
        self.begun += 1
        self.is_running.set()
        while not is_given_up():
            pass
        self.ended += 1
        raise SearchGivenUp


class ShortLog:
    def offset_for_timestamp(self, timestamp, *, up_to, is_given_up):
        return timestamp, up_to

    def latest_timestamp(self, *, up_to, is_given_up):
        return "largest", up_to


def run(scenario):
    async def whole():
        with ThreadPoolExecutor(2) as executor:
            lookups = TimeLookups(executor, at_once=2)
            try:
                await scenario(lookups)
            finally:
                lookups.stop()

    asyncio.run(asyncio.wait_for(whole(), 60))


async def running(log, count):
    while log.begun < count:
        await asyncio.sleep(0.001)


def test_times_and_the_largest_time_are_looked_up():
    async def scenario(lookups):
        assert await lookups.find(ShortLog(), 7, 9) == (7, 9)
        assert await lookups.find(ShortLog(), -3, 9) == ("largest", 9)

    run(scenario)


def test_a_search_that_nobody_waits_for_any_more_leaves_no_traceback_in_the_log():
    async def scenario(lookups):
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        log = EndlessLog()
        search = asyncio.ensure_future(lookups.find(log, 7, 9))
        await running(log, 1)
        search.cancel()
        # Twice: the second interrupts the wait for the thread.
        await asyncio.sleep(0)
        search.cancel()
        await asyncio.gather(search, return_exceptions=True)
        while not log.ended:
            await asyncio.sleep(0.001)
        assert await lookups.find(ShortLog(), 7, 9) == (7, 9)
        del search
        gc.collect()
        assert reported == []

    run(scenario)


def test_a_search_ends_when_the_client_leaves_and_the_next_in_line_has_its_turn():
    async def scenario(lookups):
        log = EndlessLog()
        searches = [asyncio.ensure_future(lookups.find(log, 7, 9)) for _ in range(5)]
        await running(log, 2)
        await asyncio.sleep(0.01)
        assert log.begun == 2, "the others wait, and take no thread"
        searches[4].cancel()
        searches[0].cancel()
        await running(log, 3)
        assert log.ended == 1
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        assert (log.begun, log.ended) in ((3, 3), (4, 4)), "who left before its turn was never searched for"
        assert await lookups.find(ShortLog(), 7, 9) == (7, 9)

    run(scenario)


def test_a_broker_that_stops_waits_for_no_search():
    async def scenario(lookups):
        log = EndlessLog()
        search = asyncio.ensure_future(lookups.find(log, 7, 9))
        await running(log, 1)
        lookups.stop()
        with pytest.raises(StorageError, match="stopping"):
            await search
        with pytest.raises(StorageError, match="stopping"):
            await lookups.find(log, 7, 9)
        assert (log.begun, log.ended) == (1, 1)

    run(scenario)
