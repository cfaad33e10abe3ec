"""Runs in the broker that ``bench stalls`` measures: notes each callback of the event loop that takes long.

Python imports this by itself when its directory is on PYTHONPATH. The time is CPU time of the loop's thread, so it says
the same on a busy machine.
"""

import asyncio
import os
import sys
import time
from asyncio import events
from types import SimpleNamespace
from typing import Any

NOTED_S = 0.005


def _described(callback: object) -> str:
    """Names the callback. ``repr`` would show results of futures too: with 200,000 elements that takes 0.2 s."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', '?')}"
    return getattr(callback, "__qualname__", type(callback).__name__)


def _install(path: str) -> None:
    notes = open(path, "a", buffering=1)  # noqa: SIM115 - open for as long as the process lives
    handles: Any = events.Handle
    run = handles._run

    def noting(handle: Any) -> None:
        started = time.thread_time()
        run(handle)
        took = time.thread_time() - started
        if took >= NOTED_S:
            notes.write(f"{time.time()} {took} {_described(handle._callback)}\n")

    handles._run = noting
    # uvloop does not run its callbacks through Handle.
    sys.modules["uvloop"] = SimpleNamespace(run=asyncio.run)  # type: ignore[assignment]


if "SKEP_BENCH_CALLBACKS" in os.environ:
    _install(os.environ["SKEP_BENCH_CALLBACKS"])
