"""Deleting a topic when the store or the process fails in the middle: it never half happens."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable
from skep.base.ids import BrokerId
from skep.metadata import current_image
from skep.metadata.catalog import Catalog
from skep.metadata.sqlite.sqlite_store import SqliteStore

ONE = [[BrokerId(1)]]


class Stop(BaseException):
    """The process dies here."""


class FailingStore(SqliteStore):
    """A store whose writes number ``fail_at`` and on raise ``error``, having taken place or not."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, poll_interval_s=0.01)
        self.writes = 0
        self.fail_at: range = range(0)
        self.error: BaseException = Stop()
        self.takes_place = False

    async def _write(self, work):
        self.writes += 1
        if self.writes - 1 not in self.fail_at:
            return await super()._write(work)
        if self.takes_place:
            await super()._write(work)
        raise self.error

    def fail_next(self, count: int, error: BaseException, *, after: int, takes_place: bool = False) -> None:
        first = self.writes + after
        self.fail_at, self.error, self.takes_place = range(first, first + count), error, takes_place


@contextlib.asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[Catalog, FailingStore]]:
    store = FailingStore(directory / "m.db")
    await store.open()
    catalog = Catalog(store)
    await catalog.open()
    try:
        yield catalog, store
    finally:
        await catalog.close()
        await store.close()


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 30))


def test_a_deleted_topic_is_pending_until_its_files_are_gone_also_over_a_restart(tmp_path):
    async def scenario():
        async with opened(tmp_path) as (catalog, _):
            topic = await catalog.create_topic("orders", ONE)
            assert await catalog.delete_topic("orders") == topic
            assert "orders" not in catalog.image.topics
            assert catalog.pending_deletions == {topic.topic_id: "orders"}
        async with opened(tmp_path) as (catalog, _):
            assert catalog.pending_deletions == {topic.topic_id: "orders"}
            await catalog.deletion_done(topic.topic_id)
            assert catalog.pending_deletions == {}
        async with opened(tmp_path) as (catalog, _):
            assert catalog.pending_deletions == {}

    run(scenario())


@pytest.mark.parametrize("takes_place", [False, True])
@pytest.mark.parametrize("write", [0, 1])
def test_a_crash_at_any_write_leaves_the_topic_whole_or_gone_with_its_mark(tmp_path, write, takes_place):
    async def scenario():
        async with opened(tmp_path) as (catalog, store):
            topic = await catalog.create_topic("orders", ONE)
            await catalog.close()  # a dead process follows no watch
            store.fail_next(1, Stop(), after=write, takes_place=takes_place)
            with pytest.raises(Stop):
                await catalog.delete_topic("orders")
        async with opened(tmp_path) as (catalog, _):
            if write == 0 and not takes_place:
                assert catalog.image.topics == {"orders": topic}
                assert catalog.pending_deletions == {}
            else:
                assert catalog.image.topics == {}
                assert catalog.pending_deletions == {topic.topic_id: "orders"}

    run(scenario())


@pytest.mark.parametrize(("write", "takes_place"), [(0, True), (1, False), (1, True)])
def test_a_marked_topic_goes_as_soon_as_the_store_answers_again(tmp_path, monkeypatch, write, takes_place):
    monkeypatch.setattr(current_image, "RETRY_PAUSE_S", 0.01)

    async def scenario():
        async with opened(tmp_path) as (catalog, store):
            topic = await catalog.create_topic("orders", ONE)
            gone = asyncio.Event()
            catalog.on_change(lambda old, new: gone.set() if "orders" not in new.topics else None)
            store.fail_next(1 if takes_place else 4, StoreUnavailable("away"), after=write, takes_place=takes_place)
            with pytest.raises(StoreUnavailable):
                await catalog.delete_topic("orders")
            await gone.wait()
            assert catalog.pending_deletions == {topic.topic_id: "orders"}

    run(scenario())


def test_a_refused_mark_leaves_the_topic_as_it_was(tmp_path):
    async def scenario():
        async with opened(tmp_path) as (catalog, store):
            topic = await catalog.create_topic("orders", ONE)
            store.fail_next(1, StoreUnavailable("away"), after=0)
            with pytest.raises(StoreUnavailable):
                await catalog.delete_topic("orders")
            changed = await catalog.alter_topic_config("orders", lambda _: {"a": "1"})
            assert changed.topic_id == topic.topic_id
        async with opened(tmp_path) as (catalog, _):
            assert catalog.image.topics == {"orders": changed}

    run(scenario())


def test_a_topic_that_changes_while_it_is_being_deleted_is_deleted_all_the_same(tmp_path):
    async def scenario():
        async with opened(tmp_path) as (here, store), opened(tmp_path) as (there, _):
            await here.create_topic("orders", ONE)
            put = store.put

            async def put_then_other_broker_changes(key, value, *, expected_version=None):
                version = await put(key, value, expected_version=expected_version)
                await there.close()  # or its own watch would see the mark and finish the deletion
                await there.alter_topic_config("orders", lambda _: {"a": "1"})
                return version

            store.put = put_then_other_broker_changes
            await here.delete_topic("orders")
            with pytest.raises(KafkaError) as unknown:
                await there.delete_topic("orders")
            assert unknown.value.code is ErrorCode.unknown_topic_or_partition

    run(scenario())


def test_a_topic_that_another_broker_deleted_and_made_anew_meanwhile_stays(tmp_path):
    async def scenario():
        async with opened(tmp_path) as (here, store), opened(tmp_path) as (there, _):
            await here.create_topic("orders", ONE)
            put = store.put

            async def put_then_other_broker_replaces(key, value, *, expected_version=None):
                version = await put(key, value, expected_version=expected_version)
                await there.delete_topic("orders")
                await there.create_topic("orders", ONE)
                return version

            store.put = put_then_other_broker_replaces
            await here.delete_topic("orders")
            assert here.image.topics == there.image.topics
            assert set(here.image.topics) == {"orders"}

    run(scenario())


def test_a_topic_made_anew_under_the_name_survives_the_end_of_the_old_deletion(tmp_path):
    async def scenario():
        async with opened(tmp_path) as (catalog, _):
            old = await catalog.create_topic("orders", ONE)
            await catalog.delete_topic("orders")
            new = await catalog.create_topic("orders", ONE)
            assert new.topic_id != old.topic_id
        async with opened(tmp_path) as (catalog, _):
            assert catalog.image.topics == {"orders": new}
            assert catalog.pending_deletions == {old.topic_id: "orders"}
            await catalog.deletion_done(old.topic_id)
            assert catalog.image.topics == {"orders": new}

    run(scenario())
