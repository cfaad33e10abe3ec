"""Handlers in threads and as tasks: how many run, what they raise, and what comes too late."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from skep.queue.delivery import Delivery
from skep.queue.handler_pool import HandlerPool, TaskPool, ThreadPool, handler_pool
from skep.queue.message import Message, Outcome, Reject
from skep.queue.statistics import Counters

PATIENCE_S = 30.0


class Scene:
    """A pool, what it counts, the deliveries that have ended, and what has ended the consumer."""

    def __init__(self, handler: Callable[[Message], Any], concurrency: int = 1) -> None:
        self.counters = Counters()
        self.ended: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self.fatal: list[BaseException] = []
        self.pool: HandlerPool = handler_pool(handler, concurrency, self.fatal.append, None)

    def submit(self, offset: int = 0) -> Delivery:
        message = Message("jobs", 0, offset, None, b"%d" % offset, (), 0)
        delivery = Delivery(message, self.counters, self.ended.put)
        self.pool.submit(delivery)
        return delivery

    def outcome(self) -> Outcome:
        verdict = self.ended.get(timeout=PATIENCE_S).verdict
        assert verdict is not None
        return verdict.outcome


@contextmanager
def scene(handler: Callable[[Message], Any], concurrency: int = 1) -> Iterator[Scene]:
    found = Scene(handler, concurrency)
    try:
        yield found
    finally:
        found.pool.close()


def raising(error: BaseException | None) -> Callable[[Message], None]:
    def handler(message: Message) -> None:
        if error is not None:
            raise error

    return handler


def raising_async(error: BaseException | None) -> Callable[[Message], Any]:
    async def handler(message: Message) -> None:
        raising(error)(message)

    return handler


def test_the_kind_of_the_handler_decides_where_it_runs() -> None:
    class Callable_:
        async def __call__(self, message: Message) -> None: ...

    for handler, kind in ((raising(None), ThreadPool), (raising_async(None), TaskPool), (Callable_(), TaskPool)):
        with scene(handler) as one:
            assert isinstance(one.pool, kind)
    loop = asyncio.new_event_loop()
    with pytest.raises(ValueError, match="plain function"):
        handler_pool(raising(None), 1, lambda error: None, loop)
    loop.close()


@pytest.mark.parametrize("make", [raising, raising_async])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, Outcome.ACCEPT), (ValueError("x"), Outcome.RETRY), (Reject("x"), Outcome.REJECT)],
)
def test_what_the_handler_does_is_the_verdict(make: Any, error: Exception | None, outcome: Outcome) -> None:
    with scene(make(error)) as one:
        one.submit()
        assert one.outcome() is outcome
        assert one.fatal == []
        assert one.counters.now.running == 0


def test_a_coroutine_that_nobody_would_await_is_an_error() -> None:
    handler = raising_async(None)
    with scene(lambda message: handler(message)) as one:
        one.submit()
        verdict = one.ended.get(timeout=PATIENCE_S).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.RETRY
    assert "give the async function itself" in verdict.reason


@pytest.mark.parametrize("make", [raising, raising_async])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_program_is_passed_on_and_the_other_handlers_go_on(make: Any, error: BaseException) -> None:
    with scene(make(error)) as one:
        one.submit()
        assert one.outcome() is Outcome.RETRY
        assert one.fatal == [error]
        one.submit()
        assert one.outcome() is Outcome.RETRY


def test_no_more_threads_run_than_allowed() -> None:
    go = threading.Semaphore(0)
    running = threading.Semaphore(0)

    def handler(message: Message) -> None:
        running.release()
        assert go.acquire(timeout=PATIENCE_S)

    with scene(handler, concurrency=3) as one:
        for offset in range(9):
            one.submit(offset)
        for _ in range(3):
            assert running.acquire(timeout=PATIENCE_S)
        assert one.counters.now.running == 3
        go.release(9)
        assert [one.outcome() for _ in range(9)] == [Outcome.ACCEPT] * 9
        assert one.counters.now.most_running == 3


def test_no_more_tasks_run_than_allowed() -> None:
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)

    with scene(handler, concurrency=3) as one:
        for offset in range(50):
            one.submit(offset)
        assert [one.outcome() for _ in range(50)] == [Outcome.ACCEPT] * 50
        assert one.counters.now.most_running == 3


def test_a_delivery_that_was_withdrawn_is_not_begun() -> None:
    go = threading.Event()
    begun: list[int] = []

    def handler(message: Message) -> None:
        begun.append(message.offset)
        assert go.wait(PATIENCE_S)

    with scene(handler) as one:
        first = one.submit(0)
        second = one.submit(1)
        third = one.submit(2)
        assert second.withdraw()
        go.set()
        assert {one.ended.get(timeout=PATIENCE_S) for _ in range(2)} == {first, third}
        assert begun == [0, 2]
        assert not first.withdraw(), "it has ended"


def test_a_result_after_the_delivery_was_abandoned_is_late() -> None:
    go, begun = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)

    with scene(handler) as one:
        delivery = one.submit(0)
        assert begun.wait(PATIENCE_S)
        assert not delivery.withdraw()
        assert delivery.abandon()
        go.set()
        other = one.submit(1)
        assert one.ended.get(timeout=PATIENCE_S) is other
        assert one.counters.now.late == 1
        assert delivery.verdict is None


def test_an_abandoned_task_is_cancelled() -> None:
    begun = threading.Event()

    async def handler(message: Message) -> None:
        begun.set()
        if message.offset == 0:
            await asyncio.Event().wait()

    with scene(handler) as one:
        delivery = one.submit(0)
        assert begun.wait(PATIENCE_S)
        assert delivery.abandon()
        other = one.submit(1)
        assert one.ended.get(timeout=PATIENCE_S) is other, "its turn has come"
        assert one.fatal == []


def test_handlers_run_on_the_loop_that_was_given() -> None:
    async def use() -> None:
        loops = []
        ended: asyncio.Queue[Delivery] = asyncio.Queue()

        async def handler(message: Message) -> None:
            loops.append(asyncio.get_running_loop())

        loop = asyncio.get_running_loop()
        pool = handler_pool(handler, 1, lambda error: None, loop)
        pool.submit(Delivery(Message("jobs", 0, 0, None, None, (), 0), Counters(), ended.put_nowait))
        await asyncio.wait_for(ended.get(), PATIENCE_S)
        pool.close()
        assert loops == [loop]

    asyncio.run(use())
