"""The catalog's operations, alone and with a second broker process beside it."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from skep.base.errors import ErrorCode, KafkaError, StartupError, VersionConflict
from skep.base.ids import BrokerId
from skep.metadata import catalog as catalog_module
from skep.metadata import compare_and_set, current_image
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import CLUSTER_DEFAULT
from skep.metadata.metadata_store import Changed
from skep.metadata.model import BrokerRecord
from skep.metadata.sqlite.sqlite_store import SqliteStore

ONE = [[BrokerId(1)]]


def in_event_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


@contextlib.asynccontextmanager
async def catalog_on(directory: Path) -> AsyncIterator[Catalog]:
    store = SqliteStore(directory / "m.db", poll_interval_s=0.01)
    await store.open()
    catalog = Catalog(store)
    await catalog.open()
    try:
        yield catalog
    finally:
        await catalog.close()
        await store.close()


async def until(catalog: Catalog, condition: Callable[[], bool]) -> None:
    """Wait for the image that makes ``condition`` true."""
    changed = asyncio.Event()
    catalog.on_change(lambda old, new: changed.set())
    while not condition():
        await changed.wait()
        changed.clear()


@contextlib.contextmanager
def refused(code: ErrorCode, match: str | None = None) -> Iterator[None]:
    with pytest.raises(KafkaError, match=match) as error:
        yield
    assert error.value.code is code


@in_event_loop
async def test_the_cluster_id_is_made_once_and_has_22_characters(tmp_path):
    async with catalog_on(tmp_path) as first, catalog_on(tmp_path) as second:
        assert len(first.image.cluster_id) == 22
        assert second.image.cluster_id == first.image.cluster_id
    async with catalog_on(tmp_path) as again:
        assert again.image.cluster_id == first.image.cluster_id


@in_event_loop
async def test_a_created_topic_is_in_the_image_at_once_and_after_a_restart(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        topic = await catalog.create_topic("orders", [[BrokerId(1)], [BrokerId(1)]], {"retention.ms": "5"})
        assert catalog.image.topics["orders"] == topic
        assert catalog.image.topics_by_id[topic.topic_id] == topic
        assert [partition.leader for partition in topic.partitions] == [1, 1]
    async with catalog_on(tmp_path) as catalog:
        assert catalog.image.topics == {"orders": topic}


@in_event_loop
async def test_what_cannot_be_created_is_refused_with_kafkas_code(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        await catalog.create_topic("a.b", ONE)
        with refused(ErrorCode.topic_already_exists, "'a.b' already exists"):
            await catalog.create_topic("a.b", ONE)
        with refused(ErrorCode.invalid_topic_exception, "collides with existing topic 'a.b'"):
            await catalog.create_topic("a_b", ONE)
        with refused(ErrorCode.invalid_topic_exception):
            await catalog.create_topic("../etc", ONE)
        with refused(ErrorCode.invalid_partitions):
            await catalog.create_topic("none", [])
        with refused(ErrorCode.invalid_replica_assignment):
            await catalog.create_topic("twice", [[BrokerId(1), BrokerId(1)]])
        assert set(catalog.image.topics) == {"a.b"}
        await catalog.delete_topic("a.b")
        await catalog.create_topic("a_b", ONE)


@in_event_loop
async def test_of_two_brokers_that_create_a_topic_one_wins_and_the_other_then_knows_it(tmp_path):
    async with catalog_on(tmp_path) as first, catalog_on(tmp_path) as second:
        outcomes = await asyncio.gather(
            *(catalog.create_topic("orders", ONE) for catalog in (first, second)), return_exceptions=True
        )
        assert sum(isinstance(outcome, KafkaError) for outcome in outcomes) == 1
        assert first.image.topics["orders"] == second.image.topics["orders"]


@in_event_loop
async def test_a_change_by_another_broker_reaches_the_image_and_is_called_back_with_old_and_new(tmp_path):
    async with catalog_on(tmp_path) as here, catalog_on(tmp_path) as there:
        calls = []
        here.on_change(lambda old, new: calls.append((set(old.topics), set(new.topics))))
        await there.create_topic("orders", ONE)
        await until(here, lambda: "orders" in here.image.topics)
        await there.alter_topic_config("orders", lambda _: {"retention.ms": "9"})
        await until(here, lambda: here.image.topics["orders"].config == {"retention.ms": "9"})
        await there.alter_broker_config(CLUSTER_DEFAULT, lambda _: {"num.partitions": "3"})
        await until(here, lambda: here.image.broker_config(CLUSTER_DEFAULT) == {"num.partitions": "3"})
        await there.delete_topic("orders")
        await until(here, lambda: not here.image.topics)
        assert calls[0] == (set(), {"orders"})
        assert calls[-1] == ({"orders"}, set())


@in_event_loop
async def test_our_own_change_is_called_back_before_the_operation_returns_and_not_again_by_the_watch(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        calls = []
        catalog.on_change(lambda old, new: calls.append(new))
        await catalog.create_topic("orders", ONE)
        assert [set(image.topics) for image in calls] == [{"orders"}]
        await catalog._current._refresh(Changed(frozenset({"topics/orders"})))
        assert len(calls) == 1


@in_event_loop
async def test_changes_that_the_watch_missed_are_found_by_reading_everything(tmp_path):
    async with catalog_on(tmp_path) as here, catalog_on(tmp_path) as there:
        await there.create_topic("stays", ONE)
        await there.create_topic("goes", ONE)
        await until(here, lambda: set(here.image.topics) == {"stays", "goes"})
        here._current._watch.close()  # from here on nothing is reported
        await there.create_topic("comes", ONE)
        gone = await there.delete_topic("goes")
        await here._current._refresh(Changed(frozenset(), missed=True))
        assert here.image.topics == there.image.topics
        assert here.pending_deletions == {gone.topic_id: "goes"}


@in_event_loop
async def test_many_changes_at_once_all_reach_the_image(tmp_path, monkeypatch):
    monkeypatch.setattr(current_image, "RELOAD_ABOVE_KEYS", 3)
    async with catalog_on(tmp_path) as here, catalog_on(tmp_path) as there:
        await asyncio.gather(*(there.create_topic(f"t{number}", ONE) for number in range(50)))
        await until(here, lambda: here.image.topics == there.image.topics)
        assert len(here.image.topics) == 50


@in_event_loop
async def test_a_record_that_cannot_be_read_is_reported_and_the_rest_is_followed(tmp_path, caplog):
    async with catalog_on(tmp_path) as here, catalog_on(tmp_path) as there:
        topic = await there.create_topic("orders", ONE)
        await until(here, lambda: "orders" in here.image.topics)
        await there._store.put("topics/orders", b'{"v":99}')
        await there.create_topic("second", ONE)
        await until(here, lambda: "second" in here.image.topics)
        assert here.image.topics["orders"] == topic
    assert "topic orders: metadata record of version 99" in caplog.text


@in_event_loop
async def test_one_who_fails_at_being_told_keeps_neither_the_others_nor_what_follows_from_coming(tmp_path, caplog):
    async with catalog_on(tmp_path) as here, catalog_on(tmp_path) as there:
        told: list[set[str]] = []

        def fail(old, new):
            raise ZeroDivisionError

        here.on_change(fail)
        here.on_change(lambda old, new: told.append(set(new.topics)))
        await there.create_topic("first", ONE)
        await until(here, lambda: "first" in here.image.topics)
        await there.create_topic("second", ONE)
        await until(here, lambda: "second" in here.image.topics)
        await here.create_topic("third", ONE)
        assert told[0] == {"first"}
        assert told[-1] == {"first", "second", "third"}
    assert "ZeroDivisionError" in caplog.text


@in_event_loop
async def test_while_a_broker_waits_for_its_id_it_follows_what_others_do(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog_module, "REGISTRATION_PAUSE_S", 0.01)
    async with catalog_on(tmp_path) as waiting:
        async with catalog_on(tmp_path) as there:
            await there.register_broker(BrokerRecord(BrokerId(1), "host", 9092))
            mine = BrokerRecord(BrokerId(1), "host", 9093)
            registering = asyncio.ensure_future(waiting.register_broker(mine, patience_s=25))
            await there.create_topic("orders", ONE)
            await until(waiting, lambda: "orders" in waiting.image.topics)
            assert not registering.done()
        registered = await registering
        assert waiting.image.brokers == {1: registered}


@in_event_loop
async def test_partitions_are_added_behind_those_that_are_there(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        before = await catalog.create_topic("orders", ONE)
        after = await catalog.create_partitions("orders", [[BrokerId(2)], [BrokerId(3)]], current_count=1)
        assert [partition.leader for partition in after.partitions] == [1, 2, 3]
        assert after.topic_id == before.topic_id
        assert catalog.image.topics["orders"] == after


@in_event_loop
async def test_two_requests_for_more_partitions_that_race_do_not_both_add_theirs(tmp_path):
    async with catalog_on(tmp_path) as first, catalog_on(tmp_path) as second:
        await first.create_topic("orders", ONE)
        outcomes = await asyncio.gather(
            *(catalog.create_partitions("orders", ONE * 2, current_count=1) for catalog in (first, second)),
            return_exceptions=True,
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, KafkaError)]
        assert [error.code for error in errors] == [ErrorCode.invalid_partitions]
        assert {len(topic.partitions) for topic in outcomes if topic not in errors} == {3}


@in_event_loop
async def test_edits_of_a_config_from_two_brokers_are_all_there_in_the_end(tmp_path):
    async with catalog_on(tmp_path) as first, catalog_on(tmp_path) as second:
        await first.create_topic("orders", ONE)

        def adding(key: str):
            return lambda config: {**config, key: "x"}

        keys = [f"k{number}" for number in range(10)]
        catalogs = [first, second] * 5
        await asyncio.gather(
            *(catalog.alter_topic_config("orders", adding(key)) for catalog, key in zip(catalogs, keys, strict=True)),
            *(
                catalog.alter_broker_config(BrokerId(1), adding(key))
                for catalog, key in zip(catalogs, keys, strict=True)
            ),
        )
        for catalog in (first, second):
            await until(catalog, lambda catalog=catalog: set(catalog.image.topics["orders"].config) == set(keys))
            await until(catalog, lambda catalog=catalog: set(catalog.image.broker_config(BrokerId(1))) == set(keys))


@in_event_loop
async def test_an_edit_that_refuses_changes_nothing(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        topic = await catalog.create_topic("orders", ONE, {"a": "1"})

        def refuse(config):
            raise KafkaError(ErrorCode.invalid_config, "no")

        with refused(ErrorCode.invalid_config):
            await catalog.alter_topic_config("orders", refuse)
        assert catalog.image.topics["orders"] == topic


@in_event_loop
@pytest.mark.parametrize("name", ["missing", "", "..", "a/b"])
async def test_a_topic_that_does_not_exist_is_unknown_whatever_its_name(tmp_path, name):
    async with catalog_on(tmp_path) as catalog:
        for operation in (
            catalog.delete_topic(name),
            catalog.create_partitions(name, ONE, current_count=1),
            catalog.alter_topic_config(name, lambda config: config),
        ):
            with refused(ErrorCode.unknown_topic_or_partition):
                await operation


@in_event_loop
async def test_producer_ids_from_two_brokers_and_over_restarts_never_repeat(tmp_path):
    given: list[int] = []
    for _ in range(2):
        async with catalog_on(tmp_path) as first, catalog_on(tmp_path) as second:
            blocks = await asyncio.gather(*(c.allocate_producer_ids(7) for c in [first, second] * 20))
            given.extend(number for block in blocks for number in block)
    assert sorted(given) == list(range(2 * 40 * 7))


@in_event_loop
async def test_an_update_that_always_loses_gives_up(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        attempts = 0

        async def lose(key, value, *, expected_version=None):
            nonlocal attempts
            attempts += 1
            raise VersionConflict(key)

        catalog._store.put = lose
        with pytest.raises(VersionConflict, match="producer-ids"):
            await catalog.allocate_producer_ids()
        assert attempts == compare_and_set.ATTEMPTS


@in_event_loop
async def test_a_registered_broker_is_known_to_others_until_it_leaves(tmp_path):
    async with catalog_on(tmp_path) as here:
        async with catalog_on(tmp_path) as there:
            registered = await there.register_broker(BrokerRecord(BrokerId(2), "host", 9093, "rack"))
            assert there.image.brokers[BrokerId(2)] == registered
            await until(here, lambda: here.image.brokers == {2: registered})
        await until(here, lambda: not here.image.brokers)


@in_event_loop
async def test_the_same_broker_id_twice_is_refused_by_name_and_address(tmp_path):
    async with catalog_on(tmp_path) as first, catalog_on(tmp_path) as second:
        await first.register_broker(BrokerRecord(BrokerId(2), "host", 9093))
        with pytest.raises(StartupError, match="broker 2 is already running at host:9093"):
            await second.register_broker(BrokerRecord(BrokerId(2), "other", 9094))


@in_event_loop
async def test_each_registration_has_a_higher_epoch(tmp_path):
    epochs = []
    for _ in range(3):
        async with catalog_on(tmp_path) as catalog:
            epochs.append((await catalog.register_broker(BrokerRecord(BrokerId(1), "host", 9092))).epoch)
    assert epochs == sorted(set(epochs))
