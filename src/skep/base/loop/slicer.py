"""Runs long work in slices, so that no client makes the others wait.

The event loop serves all clients, so a computation of a second stops the whole broker for a second. Work whose length
depends on a request, on the number of partitions or on the size of a log is therefore written as a generator that
yields where it may be interrupted. ``Slicer`` runs it: short work ends in its first slice, without a task and in the
same turn of the loop. Long work continues one slice at a time, and connections are served in between.

All work of a loop shares one allowance per turn. With a hundred requests in progress, each gets its slice in its turn,
and a turn does not become a hundred slices long.

    def _described(services, names):            # between two yields: well under a millisecond
        described = []
        for name in names:
            described.append(_describe(services, name))
            yield
        return described

    response = services.slicer.run(_described(services, names))     # the list, or an awaitable of it

State that a generator has read before a ``yield`` may have changed after it, as with ``await``.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

from skep.base.clock import Clock
from skep.base.loop.loop_watch import HandledRequest, request_of

T = TypeVar("T")

SLICE_S = 0.005
"""How long all work together may take in one turn of the loop, plus at most the time between two yields."""

FREED_AT_ONCE = 64

Work = Generator[None, None, T]


def run_at_once(work: Work[T]) -> T:
    """Runs ``work`` to its end without a pause. Only for work that is known to be short."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


def freed(objects: list[Any]) -> Work[None]:
    """Frees the structures in ``objects`` that have no other reference, a few objects at a time.

    Python frees a structure with its last reference, and all of it at once: 200,000 mappings take 20 ms. The caller
    drops its own references before it runs this. Structures with other references are skipped: a description that
    200,000 results share would be visited as often.
    """
    count = 0
    while objects:
        one = objects.pop()
        if sys.getrefcount(one) > _OURS:
            continue
        parts = _parts_of(one)
        del one
        while parts:
            some = parts[-FREED_AT_ONCE:]
            del parts[-FREED_AT_ONCE:]
            objects.extend([part for part in some if _is_large(part)])
            count += len(some)
            del some
            if count >= FREED_AT_ONCE:
                count = 0
                yield


_OURS = 2
"""References to an object that only ``freed`` has: its variable, and the argument of ``getrefcount``."""
_OURS_WITHIN = 5
"""The same in ``_is_large``, where the container of the object, the list of parts and ``map`` also refer to it."""


def _parts_of(one: Any) -> list[Any]:
    kind = one.__class__
    if kind is list or kind is tuple:
        return list(one)
    if kind is dict:
        return list(one.values())
    if hasattr(kind, "__dataclass_fields__"):
        return [getattr(one, name, None) for name in kind.__dataclass_fields__]
    return []


def _is_large(one: Any) -> bool:
    """Returns whether it is, or contains, a collection too long to be freed at once."""
    kind = one.__class__
    if kind is int or kind is str or kind is bytes:
        return False
    if sys.getrefcount(one) > _OURS_WITHIN:
        return False  # it has other references, and is not freed here
    if (kind is list or kind is tuple or kind is dict) and len(one) > FREED_AT_ONCE:
        return True
    return any(map(_is_large, _parts_of(one)))


class Slicer:
    """Owns the work that did not end in its first slice.

    Between calls ``_queue`` holds it in the order in which it continues, and ``_next_turn`` is scheduled if and only if
    the queue is not empty or the allowance is spent. Time that short work has spent also counts in the next turn. Work
    then sometimes waits a turn that it need not have, which saves a callback in every turn.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: deque[tuple[Work[Any], asyncio.Future[Any], HandledRequest | None]] = deque()
        self._spent_s = 0.0
        self._is_scheduled = False

    def run(self, work: Work[T]) -> T | Awaitable[T]:
        """Runs ``work`` to its end if that takes no longer than the rest of this turn's allowance.

        Otherwise returns an awaitable of the result. When that is cancelled, ``work`` is closed at its last ``yield``.
        """
        if not self._queue and self._spent_s < SLICE_S:
            try:
                self._run_slice(work)
            except StopIteration as end:
                result: T = end.value
                return result
        return self._enqueue(work)

    async def finish(self, work: Work[T]) -> T:
        """``run`` for a caller that is a coroutine."""
        result = self.run(work)
        return await result if isinstance(result, asyncio.Future) else result  # type: ignore[return-value]

    def _enqueue(self, work: Work[T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((work, future, request_of(sys._getframe(1))))
        self._schedule()
        return future

    def _run_slice(self, work: Work[Any]) -> None:
        """Runs ``work`` until the allowance is spent. Raises StopIteration at its end, or what ``work`` raises."""
        monotonic = self._clock.monotonic
        began = monotonic()
        until = began + SLICE_S - self._spent_s
        now = began
        try:
            while now < until:
                next(work)
                now = monotonic()
        finally:
            self._spent_s += monotonic() - began
            if self._spent_s >= SLICE_S:
                self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        while self._queue and self._spent_s < SLICE_S:
            # ``loop_watch.py`` reads the local variable ``request`` here.
            work, future, request = self._queue.popleft()
            if future.cancelled():
                work.close()
                continue
            try:
                self._run_slice(work)
            except StopIteration as end:
                future.set_result(end.value)
            except Exception as error:  # of any kind: the awaiter of the future handles it
                future.set_exception(error)
            else:
                self._queue.append((work, future, request))
        if self._queue:
            self._schedule()
