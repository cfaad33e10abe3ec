"""A function as a worker: ``consume`` calls it with the records of a share group, and acknowledges what it returns.

``consume`` starts in the background and returns a QueueConsumer. Call ``wait()`` in a process that does nothing else,
or use a ``with`` block. Its threads are daemons, and it is stopped when Python exits.
"""

import asyncio
import atexit
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from skep.queue.group_setup import prepare_group
from skep.queue.handler_pool import Handler, handler_pool
from skep.queue.lane import LOCK_SHARE, Lane, LaneSettings
from skep.queue.leader_commands import LeaderCommands
from skep.queue.server_address import client_properties
from skep.queue.statistics import Counters, Statistics

MOST_LANES = 8
"""Each lane has a librdkafka of its own, with some four threads and a connection to each broker."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def consume(
    topic: str | Sequence[str],
    handler: Handler,
    *,
    group: str,
    concurrency: int = 1,
    prefetch: int | None = None,
    timeout: float | None = None,
    start: str | None = None,
    bootstrap_servers: str | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    config: Mapping[str, Any] | None = None,
    on_close: Callable[[], None] | None = None,
) -> "QueueConsumer":
    """Calls ``handler`` with each record of the topic that the share group ``group`` has not finished.

    When the handler returns, its record is accepted. When it raises, the record is delivered again, to any member of
    the group; ``RetryLater`` says when, ``Reject`` says never. The handler is a plain function, which runs in threads,
    or an async one, which runs on an event loop of its own or on ``loop``. It may take ``timeout`` seconds; if that is
    not given, as long as a record of the group is locked less a tenth, 27 s. A record can come more than once: see
    docs/QUEUES.md.

    At most ``concurrency`` handlers run at a time. At most ``prefetch`` records are taken from the broker and not
    finished, as many as ``concurrency`` if it is not given. More makes short handlers faster, but records wait here
    while other members may be idle.

    ``start`` says where a group begins that reads a topic for the first time: ``earliest``, ``latest`` or
    ``by_duration:PT1H``. It is stored as an option of the group. ``config`` has properties of librdkafka. ``on_close``
    is called when the last handler has ended.

    Returns at once; the consumer works in the background until it is stopped. Raises ClientError if no broker answers
    or there is no such topic.
    """
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency}: must be at least 1")
    prefetch = concurrency if prefetch is None else prefetch
    if prefetch < concurrency:
        raise ValueError(f"prefetch={prefetch}: must be at least concurrency={concurrency}")
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout={timeout}: must be greater than 0")
    client = client_properties(bootstrap_servers, config)
    facts = prepare_group(client, group, topics, start)
    settings = LaneSettings(
        topics=topics,
        client={**client, "group.id": group},
        size=prefetch,
        handlers=concurrency,
        lock_s=facts.lock_s,
        timeout_s=facts.lock_s * LOCK_SHARE if timeout is None else timeout,
    )
    # Each lane is a member. Where only one member gets records, the others would stand by, or be refused.
    sizes = lane_sizes(concurrency, prefetch, MOST_LANES if facts.is_shared else 1)
    return QueueConsumer(settings, sizes, handler, group, loop, on_close)


def lane_sizes(concurrency: int, prefetch: int, most_lanes: int) -> list[int]:
    """Divides ``prefetch`` records among lanes, as evenly as possible."""
    lanes = min(concurrency, most_lanes)
    return [prefetch // lanes + (number < prefetch % lanes) for number in range(lanes)]


class QueueConsumer:
    """A consumer that works in the background. Owns its lanes and the threads of its handlers.

    ``consume`` makes one. Use it in a ``with`` block, or call ``wait`` or ``stop``.
    """

    def __init__(
        self,
        settings: LaneSettings,
        lane_sizes: Sequence[int],
        handler: Handler,
        group: str,
        loop: asyncio.AbstractEventLoop | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._on_close = on_close
        self._counters = Counters()
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._is_closed = False
        self._closing = threading.Lock()
        self._pool = handler_pool(handler, settings.handlers, self._fail, loop)
        self._lanes = [
            Lane(
                settings._replace(size=size),
                self._pool,
                LeaderCommands(settings.client, group),
                self._counters,
                self._fail,
            )
            for size in lane_sizes
        ]
        for lane in self._lanes:
            lane.thread.start()
        atexit.register(self.stop)

    @property
    def statistics(self) -> Statistics:
        """What was done so far."""
        return self._counters.now

    def wait(self) -> Statistics:
        """Waits until the consumer is stopped: by ``stop`` or, in the main thread, by SIGINT or SIGTERM.

        Then it stops as ``stop`` does. A second signal has the effect that it had before this call.
        """
        if threading.current_thread() is threading.main_thread():
            with _signals_set(self._stopping):
                self._stopping.wait()
                self._close()
        else:
            self._stopping.wait()
            self._close()
        return self._result()

    def stop(self) -> Statistics:
        """Stops the consumer: takes no more records, waits for the handlers that run, acknowledges their results, and
        releases the other records.

        It waits no longer than a handler may take. Raises the error that has ended the consumer, if there is one.
        """
        self._stopping.set()
        self._close()
        return self._result()

    def _close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            for lane in self._lanes:
                lane.stop()
            for lane in self._lanes:
                lane.thread.join()
            self._pool.close()
            if self._on_close is not None:
                self._on_close()
            self._is_closed = True
            atexit.unregister(self.stop)

    def _result(self) -> Statistics:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self.statistics

    def _fail(self, error: BaseException) -> None:
        """Called by any thread when the consumer cannot go on."""
        self._failure = self._failure or error
        self._stopping.set()
        for lane in self._lanes:
            lane.stop()

    def __enter__(self) -> "QueueConsumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._close()
        if error is None:
            self._result()


@contextmanager
def _signals_set(event: threading.Event) -> Iterator[None]:
    """Lets the first SIGINT or SIGTERM set the event. From the second on they do what they did before."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            # None: a handler that was not set by Python, which it cannot set again.
            if handler is not None and signal.getsignal(number) is first:
                signal.signal(number, handler)

    def first(number: int, frame: FrameType | None) -> None:
        restore()
        event.set()

    for number in STOP_SIGNALS:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
