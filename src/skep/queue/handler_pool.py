"""Where handlers run: plain functions in threads, async functions as tasks of one event loop.

No more than ``concurrency`` of them run at a time. What else is submitted waits its turn; the lanes bound how much that
is. A handler may raise anything: what it raises is its verdict. What is not an ``Exception`` (KeyboardInterrupt,
SystemExit) also ends the consumer, which raises it.
"""

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from skep.queue.delivery import Delivery
from skep.queue.message import ACCEPTED, Message, Outcome, Verdict, verdict_of

log = logging.getLogger("skep.queue")

Handler = Callable[[Message], Any]
OnFatal = Callable[[BaseException], None]


class HandlerPool(Protocol):
    def submit(self, delivery: Delivery) -> None:
        """Calls the handler when its turn comes, unless the delivery was given up by then."""
        ...

    def close(self) -> None:
        """Ends the threads. Does not wait for handlers that still run, because their results are not needed."""
        ...


def handler_pool(
    handler: Handler, concurrency: int, on_fatal: OnFatal, loop: asyncio.AbstractEventLoop | None
) -> HandlerPool:
    if is_async(handler):
        return TaskPool(handler, concurrency, on_fatal, loop)
    if loop is not None:
        raise ValueError("loop is for async handlers, and the handler is a plain function")
    return ThreadPool(handler, concurrency, on_fatal)


def is_async(handler: Handler) -> bool:
    """Returns whether the handler is an async function, or an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def check_is_no_coroutine(result: object) -> None:
    """Raises TypeError if a plain function returns a coroutine, which would never run."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the handler returned a coroutine; give the async function itself, or one that awaits it")


def _judged(delivery: Delivery, error: BaseException, on_fatal: OnFatal) -> Verdict:
    verdict = verdict_of(error)
    if not isinstance(error, Exception | asyncio.CancelledError):
        on_fatal(error)
    elif verdict.outcome is Outcome.REJECT or verdict.delay_ms is not None:
        log.info("%s: %s, %s", delivery, verdict.outcome.value, verdict.reason)
    else:
        log.warning("%s is to be delivered again: the handler raised %s", delivery, verdict.reason, exc_info=error)
    return verdict


class ThreadPool:
    """Owns ``concurrency`` threads. They are daemons: a handler that never returns must not keep the process alive."""

    def __init__(self, handler: Handler, concurrency: int, on_fatal: OnFatal) -> None:
        self._handler = handler
        self._on_fatal = on_fatal
        self._concurrency = concurrency
        self._submitted: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        for number in range(concurrency):
            threading.Thread(target=self._work, name=f"skep-handler-{number}", daemon=True).start()

    def submit(self, delivery: Delivery) -> None:
        self._submitted.put(delivery)

    def close(self) -> None:
        for _ in range(self._concurrency):
            self._submitted.put(None)

    def _work(self) -> None:
        while (delivery := self._submitted.get()) is not None:
            if delivery.begin():
                delivery.finish(self._call(delivery))

    def _call(self, delivery: Delivery) -> Verdict:
        try:
            check_is_no_coroutine(self._handler(delivery.message))
        except BaseException as error:
            return _judged(delivery, error, self._on_fatal)
        return ACCEPTED


class TaskPool:
    """Runs the handlers on an event loop: the given one, or one in a thread of its own. A handler whose record was
    given up is cancelled."""

    def __init__(
        self,
        handler: Callable[[Message], Awaitable[Any]],
        concurrency: int,
        on_fatal: OnFatal,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._handler = handler
        self._on_fatal = on_fatal
        self._turns = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_own_loop = loop is None
        self._loop = loop or asyncio.new_event_loop()
        if self._is_own_loop:
            threading.Thread(target=self._run_loop, name="skep-handlers", daemon=True).start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._cancel_all())
        finally:
            self._loop.close()

    async def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def submit(self, delivery: Delivery) -> None:
        self._loop.call_soon_threadsafe(self._start, delivery)

    def close(self) -> None:
        if self._is_own_loop:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _start(self, delivery: Delivery) -> None:
        # The loop itself holds tasks only weakly.
        task = self._loop.create_task(self._run(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, delivery: Delivery) -> None:
        async with self._turns:
            task = asyncio.current_task()
            assert task is not None
            if delivery.begin(cancel=lambda: self._loop.call_soon_threadsafe(task.cancel)):
                delivery.finish(await self._call(delivery))

    async def _call(self, delivery: Delivery) -> Verdict:
        # The task ends right after this, so no CancelledError is swallowed. KeyboardInterrupt and SystemExit would end
        # the loop and all other handlers.
        try:
            await self._handler(delivery.message)
        except BaseException as error:
            return _judged(delivery, error, self._on_fatal)
        return ACCEPTED
