"""The garbage collector of a Python worker: spared what was imported, at work on what comes later."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from pyspark_skep.worker_heap import settle


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    settle.cache_clear()
    yield
    gc.unfreeze()
    settle.cache_clear()


class Node:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_alive_after_the_first_task_is_not_looked_at_again() -> None:
    settle()
    assert gc.get_freeze_count() > len(gc.get_objects())


def test_it_happens_once_in_a_process() -> None:
    settle()
    gc.unfreeze()
    settle()
    assert gc.get_freeze_count() == 0


def test_garbage_from_before_is_not_kept() -> None:
    node = weakref.ref(Node())
    settle()
    assert node() is None


def test_garbage_from_afterwards_is_collected() -> None:
    settle()
    node = weakref.ref(Node())
    gc.collect()
    assert node() is None
