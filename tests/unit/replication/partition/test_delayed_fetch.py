"""Delayed fetches: woken by enough bytes, by their timer, or by a partition that goes; never left behind."""

import asyncio

from skep.replication.partition.delayed_fetch import DelayedFetch

LONG_MS = 60_000


class Watched:
    def __init__(self):
        self.delayed_fetches = set()


def run(work):
    return asyncio.run(asyncio.wait_for(work, 30))


def watching(watched, missing_bytes):
    fetch = DelayedFetch(missing_bytes)
    for one in watched:
        fetch.watch(one)
    return fetch


async def waiting(fetch, timeout_ms=LONG_MS):
    task = asyncio.create_task(fetch.wait(timeout_ms))
    await asyncio.sleep(0)
    return task


def test_bytes_of_several_partitions_add_up():
    async def scenario():
        one, other = Watched(), Watched()
        fetch = watching([one, other], 10)
        task = await waiting(fetch)
        assert one.delayed_fetches == other.delayed_fetches == {fetch}
        fetch.more(6)
        await asyncio.sleep(0)
        assert not task.done()
        fetch.more(4)
        await task
        assert one.delayed_fetches == other.delayed_fetches == set()

    run(scenario())


def test_the_timer_ends_the_wait():
    async def scenario():
        watched = Watched()
        await watching([watched], 10).wait(1)
        assert watched.delayed_fetches == set()

    run(scenario())


def test_a_client_that_leaves_takes_its_fetch_along():
    async def scenario():
        watched = Watched()
        task = await waiting(watching([watched], 10))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert watched.delayed_fetches == set()

    run(scenario())


def test_being_woken_twice_is_being_woken():
    async def scenario():
        fetch = watching([Watched()], 1)
        task = await waiting(fetch)
        fetch.wake()
        fetch.more(5)
        await task

    run(scenario())


def test_a_fetch_that_was_woken_watches_nothing_more():
    async def scenario():
        one, other = Watched(), Watched()
        fetch = watching([one], 1)
        fetch.wake()
        fetch.watch(other)
        assert one.delayed_fetches == other.delayed_fetches == set()
        await fetch.wait(LONG_MS)

    run(scenario())
