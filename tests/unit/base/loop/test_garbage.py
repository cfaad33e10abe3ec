"""What is frozen when, by a clock that the test moves. The collector itself is real."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from skep.base.loop.garbage import LONGEST_S, PAUSE_S, SHORTEST_S, Garbage
from tests.manual_clock import ManualClock


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.used_s = 0.0
        self.garbage = Garbage(self.clock, lambda: self.used_s)
        self.pause_ms = 0
        gc.callbacks.append(self._pause)
        self.garbage.start()

    def _pause(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop":
            self.clock.advance_ms(self.pause_ms)

    def collect(self, pause_ms: int) -> int:
        """A full collection that takes so long; how many more objects are frozen after it."""
        before = gc.get_freeze_count()
        self.pause_ms = pause_ms
        gc.collect()
        self.pause_ms = 0
        return gc.get_freeze_count() - before

    def check(self, after_s: float, used_s: float) -> None:
        self.clock.advance_ms(round(after_s * 1000))
        self.used_s += used_s
        asyncio.run(self.garbage.check())

    def close(self) -> None:
        self.garbage.stop()
        gc.callbacks.remove(self._pause)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def test_what_survives_a_long_collection_is_frozen(scene: Scene) -> None:
    kept = [[number] for number in range(1000)]
    assert scene.collect(round(PAUSE_S * 1000) - 1) <= 0
    assert scene.collect(round(PAUSE_S * 1000) + 1) >= len(kept)


def test_everything_is_looked_at_again_when_the_broker_is_idle(scene: Scene) -> None:
    scene.collect(100)
    scene.check(SHORTEST_S - 1, used_s=0)
    assert gc.get_freeze_count() > 0
    scene.check(1, used_s=0)
    assert gc.get_freeze_count() == 0


def test_a_busy_broker_is_left_alone_for_longer(scene: Scene) -> None:
    scene.collect(100)
    scene.check(SHORTEST_S, used_s=SHORTEST_S / 2)
    assert gc.get_freeze_count() > 0
    scene.check(LONGEST_S, used_s=LONGEST_S / 2)
    assert gc.get_freeze_count() == 0


def test_what_others_had_frozen_is_looked_at_again_too(scene: Scene) -> None:
    scene.garbage.freeze()
    assert gc.get_freeze_count() > 0
    scene.check(SHORTEST_S, used_s=0)
    assert gc.get_freeze_count() == 0


def test_a_cycle_that_was_frozen_is_freed_then(scene: Scene) -> None:
    class Node:
        freed = False

        def __del__(self) -> None:
            Node.freed = True

    node: Any = Node()
    node.itself = node
    scene.collect(100)
    del node
    gc.collect()
    assert not Node.freed
    scene.check(LONGEST_S, used_s=0)
    assert Node.freed


def test_after_a_freeze_the_next_full_collection_comes_before_there_is_much_to_look_at(scene: Scene) -> None:
    frozen = [[number] for number in range(400_000)]
    scene.garbage.freeze()
    before = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(40_000)]
    assert gc.get_stats()[2]["collections"] > before
    assert len(frozen) > len(kept)


def test_the_collector_is_left_as_it_was_found() -> None:
    before = gc.get_threshold()
    Scene().close()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_of_two_in_one_process_the_last_one_that_stops_undoes_it() -> None:
    thresholds = gc.get_threshold()
    first, second = (Garbage(ManualClock(), lambda: 0.0) for _ in range(2))
    first.start()
    second.start()
    first.stop()
    assert gc.get_threshold() != thresholds
    second.stop()
    assert gc.get_threshold() == thresholds
