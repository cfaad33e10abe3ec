"""Waiting in tests: for a condition, never for a time to pass."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
_PAUSE_S = 0.01

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str | Callable[[], str], timeout_s: float = PATIENCE_S) -> T:
    """The first result of ``condition`` that is true; AssertionError saying ``what`` did not happen.

    A function is asked for its text when time is up, so that it can say how far things had come.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if result := condition():
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(_PAUSE_S)
