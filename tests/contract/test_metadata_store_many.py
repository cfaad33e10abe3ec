"""Many puts in one go, behind a guard, as every store must make them."""

import pytest

from skep.base.errors import Fenced, VersionConflict
from skep.metadata.metadata_store import MUST_NOT_EXIST, Put
from tests.contract.conftest import in_event_loop


@in_event_loop
async def test_many_puts_are_each_a_compare_and_set_of_their_own(engine):
    async with engine.session() as store:
        there = await store.put("topics/there", b"one")
        old = await store.put("topics/changed", b"one")
        changed = await store.put("topics/changed", b"two")
        results = await store.put_many(
            [
                Put("topics/there", b"two", there),
                Put("topics/changed", b"late", old),
                Put("topics/new", b"one", MUST_NOT_EXIST),
                Put("topics/gone", b"two", 5),
                Put("deep/down/new", b"one", MUST_NOT_EXIST),
                Put("anyhow/new", b"one"),
            ]
        )
        assert isinstance(results[1], VersionConflict)
        assert isinstance(results[3], VersionConflict)
        tree = await store.read_tree("")
        assert tree == {
            "topics/there": (b"two", results[0]),
            "topics/changed": (b"two", changed),
            "topics/new": (b"one", results[2]),
            "deep/down/new": (b"one", results[4]),
            "anyhow/new": (b"one", results[5]),
        }
        assert await store.put_many([]) == []


@in_event_loop
async def test_a_new_key_among_many_may_lie_above_others_but_not_over_one(engine):
    async with engine.session() as store:
        await store.put("a/b", b"x")
        above, over = await store.put_many([Put("a", b"above", MUST_NOT_EXIST), Put("a/b", b"over", MUST_NOT_EXIST)])
        assert isinstance(over, VersionConflict)
        assert await store.get("a") == (b"above", above)


@in_event_loop
async def test_many_puts_behind_a_guard_are_made_while_it_stands(engine):
    async with engine.session() as store, engine.session() as successor:
        guard = ("controller-epoch", await store.put("controller-epoch", b"1"))
        (first,) = await store.put_many([Put("topics/a", b"one", MUST_NOT_EXIST)], guard=guard)
        await successor.put("controller-epoch", b"2")
        with pytest.raises(Fenced):
            await store.put_many([Put("topics/a", b"two", first), Put("topics/b", b"one", MUST_NOT_EXIST)], guard=guard)
        with pytest.raises(Fenced):
            await store.put_many([Put("topics/c", b"one")], guard=("no-such-key", 1))
        assert await successor.read_tree("topics") == {"topics/a": (b"one", first)}


@in_event_loop
async def test_a_guard_is_told_from_an_entry_that_lost(engine):
    async with engine.session() as store:
        guard = ("controller-epoch", await store.put("controller-epoch", b"1"))
        await store.put("topics/a", b"x")
        results = await store.put_many([Put("topics/a", b"y", 77), Put("topics/b", b"y")], guard=guard)
        assert isinstance(results[0], VersionConflict)
        assert results[1] == (await store.get("topics/b")).version


@in_event_loop
async def test_ten_thousand_puts_in_one_go_are_all_made_and_reported(engine):
    async with engine.session() as store, engine.session() as other:
        watch = await other.watch("topics")
        guard = ("controller-epoch", await store.put("controller-epoch", b"1"))
        made = await store.put_many([Put(f"topics/{number}", b"x" * 200, 0) for number in range(10_000)], guard=guard)
        again = await store.put_many(
            [
                Put(f"topics/{number}", b"y" * 200, version if number % 1000 else version + 77)
                for number, version in enumerate(made)
            ],
            guard=guard,
        )
        lost = [number for number, result in enumerate(again) if isinstance(result, VersionConflict)]
        assert lost == list(range(0, 10_000, 1000))
        tree = await other.read_tree("topics")
        assert {tree[f"topics/{number}"].version == again[number] for number in range(1, 1000)} == {True}
        assert len(tree) == 10_000
        assert len((await anext(watch)).keys) >= 1


@in_event_loop
async def test_a_key_twice_among_many_puts_is_refused_before_anything_is_written(engine):
    async with engine.session() as store:
        with pytest.raises(ValueError, match="twice"):
            await store.put_many([Put("a", b"x"), Put("b", b"x"), Put("a", b"y")])
        with pytest.raises(ValueError, match="empty value"):
            await store.put_many([Put("a", b"x"), Put("b", b"")])
        assert await store.read_tree("") == {}
