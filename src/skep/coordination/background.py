"""Background work of a shard: a few steps at a time, as operations of the shard's timers.

The shard may change between two operations, so the work has to check it again after each ``yield``. The work returns an
outcome like any operation: it is decided in the last step, and its records are written before anything else happens to
the shard.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

from skep.base.loop.slicer import Work
from skep.coordination.shard import Operation, Outcome
from skep.coordination.timers import Timers

STEPS_AT_ONCE = 20
"""Each step takes at most 0.1 ms."""


def run_in_background(timers: Timers, key: Hashable, work: Work[Outcome], on_refusal: Operation) -> None:
    """Runs ``work`` and carries out the outcome that it returns. ``key`` is in ``timers`` until the work has ended.

    ``on_refusal`` is run some time later if the records of the outcome could not be written.
    """
    timers.schedule(key, 0, functools.partial(_continue, key=key, work=work, on_refusal=on_refusal))


def _continue(
    shard: Any, *, key: Hashable, work: Work[Outcome | None], on_refusal: Callable[[Any], Outcome]
) -> Outcome:
    try:
        for _ in range(STEPS_AT_ONCE):
            next(work)
    except StopIteration as end:
        # A generator that has ended returns None: this is a retry, because the outcome's records could not be written.
        return end.value if end.value is not None else on_refusal(shard)
    shard.timers.schedule(key, 0, functools.partial(_continue, key=key, work=work, on_refusal=on_refusal))
    return Outcome()
