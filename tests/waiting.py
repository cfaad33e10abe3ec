"""Waiting in tests: for a condition, never for a time to pass."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 30.0
_PAUSE_S = 0.01

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """The first result of ``condition`` that is true; AssertionError saying ``what`` did not happen."""
    deadline = time.monotonic() + timeout_s
    while True:
        if result := condition():
            return result
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(_PAUSE_S)
