import asyncio
import weakref
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from skep.base.loop.slicer import FREED_AT_ONCE, SLICE_S, Slicer, Work, freed, run_at_once
from tests.manual_clock import ManualClock

STEPS_PER_SLICE = 5


class Steps:
    """Work whose steps each take a fifth of a slice, by a clock that only they move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slicer = Slicer(self.clock)
        self.done: list[str] = []

    def work(self, name: str, steps: int) -> Work[str]:
        for _ in range(steps):
            self.clock.advance_ms(round(SLICE_S * 1000 / STEPS_PER_SLICE))
            self.done.append(name)
            yield
        return name


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_short_work_ends_at_once() -> None:
    steps = Steps()
    assert steps.slicer.run(steps.work("a", STEPS_PER_SLICE - 1)) == "a"


def test_long_work_takes_a_turn_for_every_slice() -> None:
    async def scenario() -> tuple[str, int]:
        steps = Steps()
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(count)

        future = steps.slicer.run(steps.work("a", 10 * STEPS_PER_SLICE))
        assert len(steps.done) == STEPS_PER_SLICE
        count()
        assert isinstance(future, Awaitable)
        return await future, turns

    result, turns = run(scenario())
    assert result == "a"
    assert turns >= 9


def test_all_work_shares_the_allowance_of_a_turn() -> None:
    async def scenario() -> None:
        steps = Steps()
        futures = [steps.slicer.run(steps.work(name, 2 * STEPS_PER_SLICE)) for name in "abcdefgh"]
        # Only the first had a slice in this turn.
        assert steps.done == ["a"] * STEPS_PER_SLICE
        assert await asyncio.gather(*futures) == list("abcdefgh")  # type: ignore[arg-type]
        # From then on a slice each, in the order in which they came.
        assert "".join(steps.done[::STEPS_PER_SLICE]) == "a" + "abcdefgh" + "bcdefgh"

    run(scenario())


def test_work_that_is_cancelled_is_closed_where_it_stands() -> None:
    async def scenario() -> list[str]:
        steps = Steps()
        closed = []

        def work() -> Work[None]:
            try:
                yield from steps.work("a", 100 * STEPS_PER_SLICE)
            finally:
                closed.append("closed")

        future = steps.slicer.run(work())
        assert isinstance(future, asyncio.Future)
        future.cancel()
        assert await steps.slicer.finish(steps.work("b", 2 * STEPS_PER_SLICE)) == "b"
        return closed

    assert run(scenario()) == ["closed"]


def test_what_work_raises_reaches_the_caller_from_any_slice() -> None:
    async def scenario(steps_before: int) -> None:
        steps = Steps()

        def work() -> Work[None]:
            yield from steps.work("a", steps_before)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await steps.slicer.finish(work())

    run(scenario(1))
    run(scenario(3 * STEPS_PER_SLICE))


class Leaf:
    """What can be seen to go: neither a mapping nor a tuple can be referred to weakly."""


@dataclass(frozen=True)
class Structure:
    parts: tuple[object, ...]


def test_a_large_structure_is_freed_a_few_objects_at_a_time() -> None:
    alive: weakref.WeakSet[Leaf] = weakref.WeakSet()

    def leaf() -> dict[str, object]:
        alive.add(one := Leaf())
        return {"leaf": one, "name": "egg"}

    count = 10 * FREED_AT_ONCE
    large: list[object] = [{"topics": [Structure(tuple(leaf() for _ in range(count)))], "code": 0}]
    work = freed(large)
    before = len(alive)
    steps = 0
    for _ in work:
        steps += 1
        assert before - len(alive) < 2 * FREED_AT_ONCE
        before = len(alive)
    assert steps >= 10
    assert len(alive) <= FREED_AT_ONCE
    del work
    assert not alive


def test_what_somebody_else_refers_to_stays_as_it_is() -> None:
    shared: dict[str, list[object]] = {"topics": [[1, 2], ({"a": []},)]}
    run_at_once(freed([shared]))
    assert shared == {"topics": [[1, 2], ({"a": []},)]}


def test_what_many_share_is_not_walked_for_each_of_them() -> None:
    shared = {"configs": [{"name": str(n)} for n in range(10 * FREED_AT_ONCE)]}
    results: list[object] = [[{"code": 0, "description": shared} for _ in range(10 * FREED_AT_ONCE)]]
    assert len(list(freed(results))) < 100
    assert len(shared["configs"]) == 10 * FREED_AT_ONCE
