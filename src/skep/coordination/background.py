"""Work of a shard that no request waits for, a few steps at a time, as operations of the shard's timers.

The shard changes between two operations, so the work looks at it again after each ``yield``. What it returns is an
outcome like that of any operation: decided in its last step, and written before anything else happens to the shard.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

from skep.base.loop.slicer import Work
from skep.coordination.shard import Operation, Outcome
from skep.coordination.timers import Timers

STEPS_AT_ONCE = 20
"""Of at most 0.1 ms each."""


def run_in_background(timers: Timers, key: Hashable, work: Work[Outcome], on_refusal: Operation) -> None:
    """Runs ``work``, and carries out what it returns. ``key`` is in ``timers`` until it has ended.

    ``on_refusal`` is carried out, after a while, when the records of the outcome could not be written.
    """
    timers.schedule(key, 0, functools.partial(_go_on, key=key, work=work, on_refusal=on_refusal))


def _go_on(shard: Any, *, key: Hashable, work: Work[Outcome | None], on_refusal: Callable[[Any], Outcome]) -> Outcome:
    try:
        for _ in range(STEPS_AT_ONCE):
            next(work)
    except StopIteration as end:
        # A generator that has ended returns None: the runtime repeats the operation because it could not be written.
        return end.value if end.value is not None else on_refusal(shard)
    shard.timers.schedule(key, 0, functools.partial(_go_on, key=key, work=work, on_refusal=on_refusal))
    return Outcome()
