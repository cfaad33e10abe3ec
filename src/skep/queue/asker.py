"""Requests that wait for their answer: ``ask`` for one, ``Asker`` for many at a time.

An asker has a producer, and a consumer that reads one partition of each reply topic, by assignment. All answers in that
partition come to it, also those to other askers. It takes those whose correlation id it waits for, each once. An answer
that comes after its time, or a second time, is dropped.

A request that timed out may still be carried out; it cannot be withdrawn. It has the header ``ttl-ms``, so a group that
reads the header (``skep.share.record.ttl.header.enable``) does not get the request after its timeout.
"""

import heapq
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Record

from skep.client.errors import ClientError
from skep.queue.message import Message, message_of
from skep.queue.reply_headers import CORRELATION_ID, TIME_TO_LIVE, ReplyAddress, error_in, request_headers
from skep.queue.reply_inbox import find_inbox
from skep.queue.server_address import plain_properties

log = logging.getLogger("skep.queue")

DEFAULT_TIMEOUT_S = 30.0
MOST_PENDING = 10_000
TICK_S = 0.1
"""How late a future may fail after its timeout."""
SPARE_DEADLINES = 1_000


class AskTimeout(TimeoutError):
    """No answer came in time. The request may be carried out nevertheless, or was."""


class AskFailed(Exception):
    """The handler at the other side raised an exception: ``kind`` is its class, ``reason`` its message."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}" if reason else kind)
        self.kind = kind
        self.reason = reason


class _Pending(NamedTuple):
    future: "Future[Message]"
    topic: str
    timeout_s: float


class Asker:
    """Asks, from any number of threads. Owns a producer, a consumer, a thread that reads, and what is not answered yet.

    It can have ``max_pending`` requests without an answer; more are refused with ClientError.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        max_pending: int = MOST_PENDING,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._properties = plain_properties(bootstrap_servers, config)
        self._max_pending = max_pending
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._inboxes: dict[str, TopicPartition] = {}
        self._unread: queue.SimpleQueue[TopicPartition] = queue.SimpleQueue()
        self._pending: dict[bytes, _Pending] = {}
        self._deadlines: list[tuple[float, bytes]] = []
        self._dropped = 0
        self._closing = threading.Event()
        self._is_closed = False
        self._producer = Producer({**self._properties, "linger.ms": 0, "delivery.report.only.error": True})
        # librdkafka requires a group id. No offsets are committed, and the group is not joined.
        self._consumer = Consumer(
            {
                **self._properties,
                "group.id": f"skep-asker-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._thread = threading.Thread(target=self._run, name="skep-asker", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """The number of requests that wait for their answer."""
        return len(self._pending)

    @property
    def dropped(self) -> int:
        """The number of dropped answers: late ones, duplicates, and those for another asker of the same partition."""
        return self._dropped

    def ask(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        key: bytes | str | None = None,
        headers: Iterable[tuple[str, str | bytes | None]] = (),
        reply_topic: str | None = None,
    ) -> bytes | None:
        """Writes a request, waits for its answer, and returns the value of the answer.

        Raises AskTimeout if none has come after ``timeout`` seconds, AskFailed if the handler raised, and ClientError
        if the request could not be written.
        """
        deadline = time.monotonic() + timeout
        correlation_id = uuid.uuid4().bytes
        future = self._request(correlation_id, topic, value, timeout, key, headers, reply_topic)
        try:
            return future.result(max(0.0, deadline - time.monotonic())).value
        except AskTimeout:
            raise
        except TimeoutError:
            self._take(correlation_id)
            raise _too_late(topic, timeout) from None

    def request(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        key: bytes | str | None = None,
        headers: Iterable[tuple[str, str | bytes | None]] = (),
        reply_topic: str | None = None,
    ) -> "Future[Message]":
        """Writes a request, and returns a future of the whole answer. ``asyncio.wrap_future`` makes it awaitable."""
        return self._request(uuid.uuid4().bytes, topic, value, timeout, key, headers, reply_topic)

    def _request(
        self,
        correlation_id: bytes,
        topic: str,
        value: bytes | str | None,
        timeout: float,
        key: bytes | str | None,
        headers: Iterable[tuple[str, str | bytes | None]],
        reply_topic: str | None,
    ) -> "Future[Message]":
        deadline = time.monotonic() + timeout
        inbox = self._inbox(reply_topic or f"{topic}.replies")
        future: Future[Message] = Future()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            future.set_exception(_too_late(topic, timeout))
            return future
        with self._lock:
            if self._closing.is_set():
                raise ClientError("the asker is closed")
            if len(self._pending) >= self._max_pending:
                raise ClientError(
                    f"{len(self._pending)} requests have no answer yet: max_pending is {self._max_pending}"
                )
            self._pending[correlation_id] = _Pending(future, topic, timeout)
            heapq.heappush(self._deadlines, (deadline, correlation_id))
        try:
            self._producer.produce(
                topic,
                value,
                key,
                headers=[
                    *headers,
                    *request_headers(ReplyAddress(inbox.topic, inbox.partition, correlation_id)),
                    (TIME_TO_LIVE, b"%d" % max(1, round(left_s * 1000))),
                ],
                on_delivery=lambda error, _: self._not_written(correlation_id, error),
            )
        except (BufferError, KafkaException) as error:
            self._take(correlation_id)
            raise ClientError(f"the request to '{topic}' was not written: {error}") from None
        return future

    def _inbox(self, topic: str) -> TopicPartition:
        with self._opening:
            if topic not in self._inboxes:
                self._inboxes[topic] = find_inbox(self._properties, topic)
                # Only its thread uses the consumer: other calls would wait for its poll.
                self._unread.put(self._inboxes[topic])
            return self._inboxes[topic]

    def _take(self, correlation_id: bytes) -> _Pending | None:
        with self._lock:
            return self._pending.pop(correlation_id, None)

    def _not_written(self, correlation_id: bytes, error: KafkaError | None) -> None:
        if error is not None and (pending := self._take(correlation_id)) is not None:
            _fail(pending.future, ClientError(f"the request to '{pending.topic}' was not written: {error.str()}"))

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            # Without the thread, every request would time out, and the error would not say why.
            log.exception("the asker has ended")
            reason = f"the asker has ended: {error}"
        else:
            reason = "the asker was closed before the answer came"
        with self._lock:
            self._closing.set()
            left, self._pending = self._pending, {}
        for pending in left.values():
            _fail(pending.future, ClientError(reason))

    def _read(self) -> None:
        last_error = ""
        while not self._closing.is_set():
            while not self._unread.empty():
                self._consumer.incremental_assign([self._unread.get()])
            record = self._consumer.poll(TICK_S)
            if record is None:
                self._producer.poll(0)
                last_error = ""
            elif (error := record.error()) is None:
                self._answered(record)
            elif error.str() != last_error:
                # librdkafka continues by itself when the brokers are back.
                last_error = error.str()
                log.warning("replies: %s", last_error)
            self._expire()

    def _answered(self, record: Record) -> None:
        reply = message_of(record)
        pending = self._take(reply.header(CORRELATION_ID) or b"")
        if pending is None:
            self._dropped += 1
        elif error := error_in(reply):
            _fail(pending.future, AskFailed(*error))
        elif pending.future.set_running_or_notify_cancel():
            pending.future.set_result(reply)

    def _expire(self) -> None:
        if not self._deadlines:
            return
        now = time.monotonic()
        expired: list[_Pending] = []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= now:
                _, correlation_id = heapq.heappop(self._deadlines)
                if (pending := self._pending.pop(correlation_id, None)) is not None:
                    expired.append(pending)
            # Most are answered long before their time: without this their deadlines would pile up.
            if len(self._deadlines) > 2 * len(self._pending) + SPARE_DEADLINES:
                self._deadlines = [one for one in self._deadlines if one[1] in self._pending]
                heapq.heapify(self._deadlines)
        for pending in expired:
            _fail(pending.future, _too_late(pending.topic, pending.timeout_s))

    def close(self) -> None:
        """Ends the thread. What is not answered fails with ClientError. A second call does nothing."""
        with self._lock:
            self._closing.set()
            if self._is_closed:
                return
            self._is_closed = True
        self._thread.join()
        self._producer.purge()
        self._producer.poll(0)
        self._consumer.close()

    def __enter__(self) -> "Asker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _fail(future: "Future[Message]", error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _too_late(topic: str, timeout_s: float) -> AskTimeout:
    return AskTimeout(f"no answer to the request to '{topic}' within {timeout_s:g} s")
