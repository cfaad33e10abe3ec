"""What every ``MetadataStore`` does. Two sessions stand for two brokers; where it matters they are two processes."""

import asyncio
import contextlib
import signal

import pytest

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.metadata.metadata_store import MUST_NOT_EXIST, Changed, Versioned
from tests.contract.conftest import LONG_SESSION_S, in_event_loop, seen, told, vanished


@in_event_loop
async def test_a_key_that_was_never_put_is_not_there(engine):
    async with engine.session() as store:
        assert await store.get("topics/orders") is None


@in_event_loop
async def test_a_put_value_is_read_back_with_its_version(engine):
    async with engine.session() as store:
        version = await store.put("topics/orders", b"\x00one\xff")
        assert version > 0
        assert await store.get("topics/orders") == Versioned(b"\x00one\xff", version)


@in_event_loop
async def test_what_one_session_put_another_reads_even_after_the_first_closed(engine):
    async with engine.session() as store:
        version = await store.put("topics/orders", b"one")
    async with engine.session() as other:
        assert await other.get("topics/orders") == (b"one", version)


@in_event_loop
async def test_each_put_raises_the_version(engine):
    async with engine.session() as store:
        versions = [await store.put("a", b"x") for _ in range(5)]
        assert versions == sorted(set(versions))


@in_event_loop
async def test_a_put_that_expects_no_key_is_refused_when_there_is_one(engine):
    async with engine.session() as store:
        await store.put("a", b"first", expected_version=MUST_NOT_EXIST)
        with pytest.raises(VersionConflict):
            await store.put("a", b"second", expected_version=MUST_NOT_EXIST)
        entry = await store.get("a")
        assert entry is not None
        assert entry.value == b"first"


@in_event_loop
async def test_a_put_with_an_old_version_is_refused_and_changes_nothing(engine):
    async with engine.session() as store, engine.session() as other:
        old = await store.put("a", b"one")
        new = await other.put("a", b"two", expected_version=old)
        with pytest.raises(VersionConflict):
            await store.put("a", b"three", expected_version=old)
        assert await store.get("a") == (b"two", new)


@in_event_loop
async def test_a_put_that_expects_a_version_of_a_deleted_key_is_refused(engine):
    async with engine.session() as store:
        version = await store.put("a", b"one")
        assert await store.delete("a")
        with pytest.raises(VersionConflict):
            await store.put("a", b"two", expected_version=version)
        assert await store.get("a") is None


@in_event_loop
async def test_delete_says_whether_the_key_was_there(engine):
    async with engine.session() as store:
        await store.put("a", b"one")
        assert await store.delete("a") is True
        assert await store.delete("a") is False
        assert await store.get("a") is None


@in_event_loop
async def test_a_delete_with_another_version_is_refused(engine):
    async with engine.session() as store:
        old = await store.put("a", b"one")
        new = await store.put("a", b"two")
        with pytest.raises(VersionConflict):
            await store.delete("a", expected_version=old)
        assert await store.delete("a", expected_version=new)
        with pytest.raises(VersionConflict):
            await store.delete("a", expected_version=new)


@in_event_loop
async def test_children_are_the_names_directly_below_a_key(engine):
    async with engine.session() as store:
        for key in ("topics/b", "topics/a", "topics/a.b", "topics/deep/x", "topics/deep/y", "topics2/no", "topics-/no"):
            await store.put(key, b"x")
        assert await store.children("topics") == ["a", "a.b", "b", "deep"]
        assert await store.children("topics/deep") == ["x", "y"]
        assert await store.children("topics/a") == []
        assert await store.children("nothing") == []


@in_event_loop
async def test_read_tree_has_the_key_and_all_below_it_and_no_neighbour(engine):
    async with engine.session() as store:
        keys = ["a", "a/b", "a/b/c", "a/d", "a.b", "a0", "ab", "b/a"]
        versions = {key: await store.put(key, key.encode()) for key in keys}
        tree = await store.read_tree("a")
        assert tree == {key: (key.encode(), versions[key]) for key in ("a", "a/b", "a/b/c", "a/d")}
        assert set(await store.read_tree("")) == set(keys)
        assert await store.read_tree("nothing") == {}


@in_event_loop
async def test_an_ephemeral_key_is_seen_by_others_and_vanishes_when_its_session_closes(engine):
    async with engine.session() as reader:
        async with engine.session() as writer:
            version = await writer.put_ephemeral("brokers/1", b"here")
            assert await reader.get("brokers/1") == (b"here", version)
            assert await reader.children("brokers") == ["1"]
        assert await reader.get("brokers/1") is None
        assert await reader.children("brokers") == []
        assert await reader.read_tree("brokers") == {}


@in_event_loop
async def test_an_ephemeral_key_that_exists_is_not_put_again_by_anyone(engine):
    async with engine.session() as first, engine.session() as second:
        await first.put_ephemeral("brokers/1", b"first")
        for session in (first, second):
            with pytest.raises(VersionConflict):
                await session.put_ephemeral("brokers/1", b"second")
        entry = await second.get("brokers/1")
        assert entry is not None
        assert entry.value == b"first"


@in_event_loop
async def test_an_ephemeral_key_stays_ephemeral_when_another_session_changes_its_value(engine):
    async with engine.session() as reader:
        async with engine.session() as writer:
            await writer.put_ephemeral("brokers/1", b"one")
            await reader.put("brokers/1", b"two")
        assert await reader.get("brokers/1") is None


@in_event_loop
async def test_ordinary_keys_outlive_the_session_that_put_them(engine):
    async with engine.session() as writer:
        await writer.put_ephemeral("brokers/1", b"here")
        await writer.put("topics/a", b"stays")
    async with engine.session() as reader:
        assert set(await reader.read_tree("")) == {"topics/a"}


@in_event_loop
async def test_a_watch_reports_puts_and_deletes_of_this_session_and_of_others(engine):
    async with engine.session() as store, engine.session() as other:
        await store.put("topics/c", b"x")
        watch = await store.watch("topics")
        await store.put("topics/a", b"x")
        await seen(watch, {"topics/a"})
        await other.put("topics/b", b"x")
        await seen(watch, {"topics/b"})
        await other.delete("topics/c")
        await seen(watch, {"topics/c"})


@in_event_loop
async def test_a_watch_reports_only_what_lies_under_its_prefix(engine):
    async with engine.session() as store:
        await store.put("topics/b", b"x")
        narrow, wide = await store.watch("topics"), await store.watch("")
        await store.put("topicsx/a", b"x")
        await seen(wide, {"topicsx/a"})
        await store.put("topics/a", b"x")
        assert await anext(narrow) == Changed(frozenset({"topics/a"}))


@in_event_loop
async def test_a_watch_reports_that_an_ephemeral_key_went_with_its_session(engine):
    async with engine.session() as reader:
        async with engine.session() as writer:
            await writer.put_ephemeral("brokers/1", b"here")
            watch = await reader.watch("brokers")
        await seen(watch, {"brokers/1"})
        assert await reader.get("brokers/1") is None


@in_event_loop
async def test_a_watch_made_after_another_one_was_closed_works(engine):
    async with engine.session() as store:
        first = await store.watch("a")
        first.close()
        second = await store.watch("a")
        await store.put("a", b"x")
        await seen(second, {"a"})
        with pytest.raises(StopAsyncIteration):
            await anext(first)


@in_event_loop
async def test_closing_the_store_ends_a_watch_that_is_waiting(engine):
    async with engine.session() as store:
        watch = await store.watch("")
        waiting = asyncio.ensure_future(anext(watch, None))
        await store.close()
        assert await waiting is None


@in_event_loop
async def test_a_closed_store_is_unavailable_and_can_be_closed_twice(engine):
    async with engine.session() as store:
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.get("a")


@in_event_loop
@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "a/..", "a\0b"])
async def test_what_is_not_a_path_is_not_a_key(engine, key):
    async with engine.session() as store:
        with pytest.raises(ValueError, match="key"):
            await store.put(key, b"x")
        assert await store.read_tree("") == {}


@in_event_loop
async def test_an_empty_value_is_refused(engine):
    async with engine.session() as store:
        with pytest.raises(ValueError, match="empty value"):
            await store.put("a", b"")
        assert await store.get("a") is None


INCREMENTS = 50
INCREMENT = f"""
    for _ in range({INCREMENTS}):
        while True:
            entry = await store.get("counter")
            try:
                await store.put("counter", b"%d" % (int(entry.value) + 1), expected_version=entry.version)
                break
            except VersionConflict:
                pass
    await store.close()
"""


@in_event_loop
async def test_compare_and_set_loses_no_increment_of_three_processes(engine):
    async with engine.session() as store:
        await store.put("counter", b"0")
        with contextlib.ExitStack() as stack:
            # A put whose connection is lost may have taken place, and would be counted twice.
            children = [stack.enter_context(engine.process(INCREMENT, LONG_SESSION_S)) for _ in range(3)]
            for child in children:
                assert await asyncio.to_thread(child.wait) == 0
        entry = await store.get("counter")
        assert entry is not None
        assert int(entry.value) == 3 * INCREMENTS


EPHEMERAL = """
    await store.put_ephemeral("brokers/7", b"here")
    await asyncio.Event().wait()
"""


@in_event_loop
async def test_the_ephemeral_key_of_a_killed_process_vanishes_and_a_watch_says_so(engine):
    async with engine.session() as store:
        watch = await store.watch("brokers")
        with engine.process(EPHEMERAL) as child:
            await seen(watch, {"brokers/7"})
            assert await store.get("brokers/7") is not None
            child.kill()
            await seen(watch, {"brokers/7"})
        assert await store.get("brokers/7") is None


@in_event_loop
async def test_the_key_of_a_killed_process_can_be_taken_by_its_successor(engine):
    async with engine.session() as store:
        watch = await store.watch("brokers")
        with engine.process(EPHEMERAL) as child:
            await seen(watch, {"brokers/7"})
            with pytest.raises(VersionConflict):
                await store.put_ephemeral("brokers/7", b"successor")
            child.kill()
            await vanished(store, watch, "brokers/7")
            await store.put_ephemeral("brokers/7", b"successor")
        entry = await store.get("brokers/7")
        assert entry is not None
        assert entry.value == b"successor"


@in_event_loop
async def test_a_key_with_others_below_it_can_be_deleted_and_put_again(engine):
    async with engine.session() as store:
        await store.put("a", b"x")
        await store.put("a/b", b"x")
        assert await store.delete("a")
        assert await store.get("a") is None
        assert set(await store.read_tree("")) == {"a/b"}
        assert await store.delete("a") is False
        version = await store.put("a", b"new", expected_version=MUST_NOT_EXIST)
        assert await store.get("a") == (b"new", version)


FROZEN = """
    await store.put_ephemeral("brokers/7", b"first")
    print("put")
    await store.wait_session_end()
    print("ended")
    await store.put_ephemeral("brokers/7", b"second")
    print("put again")
    await store.wait_session_end()
    print("ended again")
"""


@in_event_loop
async def test_a_process_that_is_frozen_loses_its_keys_learns_it_on_waking_and_begins_anew(engine):
    async with engine.session() as store:
        watch = await store.watch("brokers")
        with engine.process(FROZEN) as child:
            assert await told(child) == "put"
            await seen(watch, {"brokers/7"})
            child.send_signal(signal.SIGSTOP)
            await vanished(store, watch, "brokers/7")
            child.send_signal(signal.SIGCONT)
            assert await told(child) == "ended"
            assert await told(child) == "put again"
            assert (await store.get("brokers/7")).value == b"second"
            child.send_signal(signal.SIGSTOP)
            await vanished(store, watch, "brokers/7")
            child.send_signal(signal.SIGCONT)
            assert await told(child) == "ended again"


@in_event_loop
async def test_a_session_that_lives_does_not_end(engine):
    async with engine.session() as store:
        await store.put_ephemeral("brokers/1", b"x")
        ended = asyncio.ensure_future(store.wait_session_end())
        await store.put("a", b"x")
        await store.delete("brokers/1")
        assert not ended.done()
        ended.cancel()
