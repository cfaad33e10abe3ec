"""A topic is deleted and created again: a decision based on the first never changes or removes the second."""

import contextlib
from dataclasses import replace

import pytest

from skep.base.errors import VersionConflict
from skep.base.ids import BrokerId
from skep.metadata.catalog import Catalog
from skep.metadata.metadata_store import MUST_NOT_EXIST, Put
from tests.contract.conftest import in_event_loop

KEY = "topics/orders"
REPLICAS = [[BrokerId(1), BrokerId(2)]]


@contextlib.asynccontextmanager
async def two_catalogs(engine):
    async with engine.session() as first, engine.session() as second:
        catalogs = Catalog(first, BrokerId(1)), Catalog(second, BrokerId(2))
        for catalog in catalogs:
            await catalog.open()
        try:
            yield catalogs
        finally:
            for catalog in catalogs:
                await catalog.close()


@in_event_loop
async def test_a_key_that_keeps_its_version_is_gone_like_any_other(engine):
    async with engine.session() as store:
        version = await store.put(KEY, b"x")
        assert await store.delete(KEY, expected_version=version, keeps_version=True)
        assert await store.get(KEY) is None
        assert await store.read_tree("") == {}
        assert await store.children("topics") == []
        assert not await store.delete(KEY, keeps_version=True)


@in_event_loop
async def test_a_key_that_keeps_its_version_goes_on_from_there(engine):
    async with engine.session() as store:
        before = [await store.put(KEY, b"x") for _ in range(3)]
        for _ in range(3):
            await store.delete(KEY, keeps_version=True)
            again = await store.put(KEY, b"y", expected_version=MUST_NOT_EXIST)
            assert again > max(before)
            with pytest.raises(VersionConflict):
                await store.put(KEY, b"z", expected_version=MUST_NOT_EXIST)
            before.append(again)
        assert await store.get(KEY) == (b"y", before[-1])


@in_event_loop
async def test_who_saw_the_earlier_value_can_neither_change_nor_delete_the_later_one(engine):
    async with engine.session() as store:
        version = await store.put(KEY, b"first")
        await store.delete(KEY, keeps_version=True)
        with pytest.raises(VersionConflict):
            await store.put(KEY, b"from the first", expected_version=version)
        again = await store.put(KEY, b"second")
        with pytest.raises(VersionConflict):
            await store.put(KEY, b"from the first", expected_version=version)
        with pytest.raises(VersionConflict):
            await store.delete(KEY, expected_version=version)
        (result,) = await store.put_many([Put(KEY, b"from the first", version)])
        assert isinstance(result, VersionConflict)
        assert await store.get(KEY) == (b"second", again)


@in_event_loop
async def test_a_controller_that_decided_by_a_deleted_topic_does_not_write_over_the_one_made_anew(engine):
    async with two_catalogs(engine) as (client, controller):
        first = await client.create_topic("orders", REPLICAS)
        controllership = await controller.become_controller(BrokerId(2))
        elected = tuple(one.elected(BrokerId(2), (BrokerId(2),)) for one in first.partitions)
        await client.delete_topic("orders")
        assert await controller.put_topics(controllership, [replace(first, partitions=elected)]) == ["orders"]
        second = await client.create_topic("orders", REPLICAS)
        assert await controller.put_topics(controllership, [replace(first, partitions=elected)]) == ["orders"]
        assert client.image.topics["orders"].topic_id == second.topic_id
        assert await client._store.get("topics/orders") == (second.encode(), second.version)


@in_event_loop
async def test_a_broker_that_finishes_the_deletion_of_the_first_topic_does_not_remove_the_second(engine):
    async with two_catalogs(engine) as (client, late):
        first = await client.create_topic("orders", REPLICAS)
        await client.delete_topic("orders")
        second = await client.create_topic("orders", REPLICAS)
        async with late._current.lock:
            # As if its image still had the first topic and only the mark had been reported.
            await late._current.remove_topic(first)
            assert late.image.topics["orders"].topic_id == second.topic_id
        assert await client._store.get("topics/orders") == (second.encode(), second.version)
