"""Producer ids come in blocks, with one in reserve for when the store is away."""

import asyncio

import pytest

from skep.base.errors import StoreUnavailable
from skep.broker.cluster import producer_ids
from skep.broker.cluster.producer_ids import ProducerIds

BLOCK = 3


class Counter:
    """In the place of the catalog."""

    def __init__(self):
        self.next = 0
        self.is_away = False

    async def allocate_producer_ids(self):
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailable("away")
        self.next += BLOCK
        return range(self.next - BLOCK, self.next)


async def take(ids, count):
    return [await ids.next_id() for _ in range(count)]


def test_without_a_reserve_they_come_from_the_store():
    async def scenario():
        assert await take(ProducerIds(Counter()), 7) == [0, 1, 2, 3, 4, 5, 6]

    asyncio.run(scenario())


def test_the_reserve_lasts_while_the_store_is_away_and_is_taken_again_after_it(monkeypatch):
    monkeypatch.setattr(producer_ids, "RETRY_PAUSE_S", 0)

    async def scenario():
        store = Counter()
        ids = ProducerIds(store)
        await ids.keep_reserve()
        store.is_away = True
        assert await take(ids, BLOCK) == [0, 1, 2]
        await ids.keep_reserve()
        with pytest.raises(StoreUnavailable):
            await ids.next_id()
        store.is_away = False
        await ids.keep_reserve()
        store.is_away = True
        assert await take(ids, BLOCK) == [3, 4, 5]

    asyncio.run(scenario())


def test_a_full_reserve_asks_for_nothing():
    async def scenario():
        store = Counter()
        ids = ProducerIds(store)
        await ids.keep_reserve()
        waiting = asyncio.ensure_future(ids.keep_reserve())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert store.next == BLOCK
        await ids.next_id()  # begins the reserve: another is due
        await waiting
        assert store.next == 2 * BLOCK

    asyncio.run(scenario())


def test_many_at_once_get_different_ones():
    async def scenario():
        ids = ProducerIds(Counter())
        keeping = asyncio.ensure_future(ids.keep_reserve())
        found = await asyncio.gather(*(ids.next_id() for _ in range(20)))
        await keeping
        assert len(set(found)) == 20

    asyncio.run(scenario())
