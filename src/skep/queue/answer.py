"""Answers to requests: a queue consumer whose handler's result is written to where the asker reads.

The answer is written before the request is accepted. If the process dies in between, the request is delivered again,
and the asker drops the second answer.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from skep.queue.handler_pool import Handler, check_is_no_coroutine, is_async
from skep.queue.message import Message, Reject, RetryLater
from skep.queue.queue_consumer import QueueConsumer, consume
from skep.queue.reply_headers import ReplyAddress, reply_address, reply_headers
from skep.queue.server_address import plain_properties

log = logging.getLogger("skep.queue")

RECENT = "by_duration:PT1M"
"""Where a new group begins: with requests that askers may still wait for."""
WRITE_S = 20.0
"""How long an answer may take to be written, less than the lock of its request by default."""

_NOBODY_READS = (
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
)
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)


def answer(
    topic: str,
    handler: Handler,
    *,
    group: str | None = None,
    concurrency: int = 1,
    prefetch: int | None = None,
    timeout: float | None = None,
    start: str | None = RECENT,
    bootstrap_servers: str | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    config: Mapping[str, Any] | None = None,
) -> QueueConsumer:
    """Calls ``handler`` with each request, and sends what it returns (bytes, str or None) to its asker.

    When the handler raises, the asker gets the exception, and the request is done; ``Reject`` also moves it to the dead
    letters of the group. ``RetryLater`` answers nothing, and the request is delivered again. The members of ``group``,
    ``<topic>.answers`` if it is not given, share the requests. The rest is as in ``consume``.
    """
    replies = Replies(plain_properties(bootstrap_servers, config))
    try:
        return consume(
            topic,
            replies.answering(handler),
            group=group or f"{topic}.answers",
            concurrency=concurrency,
            prefetch=prefetch,
            timeout=timeout,
            start=start,
            bootstrap_servers=bootstrap_servers,
            loop=loop,
            config=config,
            on_close=replies.close,
        )
    except BaseException:
        replies.close()
        raise


class Replies:
    """Writes answers. Owns a producer, and the thread that serves it."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        limits = {"linger.ms": 0, "message.timeout.ms": round(WRITE_S * 1000)}
        self._producer = Producer({**properties, **limits})
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="skep-replies", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(0.1)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def answering(self, handler: Handler) -> Handler:
        """Returns the handler of requests that calls ``handler`` and sends its answer."""

        def answer_plainly(request: Message) -> None:
            result, error = None, None
            try:
                result = handler(request)
                check_is_no_coroutine(result)
            except RetryLater:
                raise
            except Exception as raised:
                error = raised
            self._send(request, result, error).result()
            _rejected(error)

        async def answer_async(request: Message) -> None:
            result, error = None, None
            try:
                result = await handler(request)
            except RetryLater:
                raise
            except Exception as raised:
                error = raised
            await asyncio.wrap_future(self._send(request, result, error))
            _rejected(error)

        return answer_async if is_async(handler) else answer_plainly

    def _send(self, request: Message, result: Any, error: Exception | None) -> "Future[None]":
        """Writes the answer. The future fails if it may not be there, so that the request is delivered again."""
        sent: Future[None] = Future()
        if error is not None and not isinstance(error, Reject):
            log.warning("the handler of %s-%d offset %d raised", *_place(request), exc_info=error)
        try:
            address = reply_address(request)
        except ValueError as unclear:
            log.warning("no answer to %s-%d offset %d: %s", *_place(request), unclear)
            address = None
        if address is None:
            sent.set_result(None)
            return sent
        if error is None and not isinstance(result, bytes | str | None):
            error = TypeError(f"the handler returned {type(result).__name__}, not bytes, str or None")
        self._produce(address, request, result if error is None else None, error, sent)
        return sent

    def _produce(
        self,
        address: ReplyAddress,
        request: Message,
        value: bytes | str | None,
        error: Exception | None,
        sent: "Future[None]",
    ) -> None:
        def written(failure: KafkaError | None, _: object) -> None:
            if failure is None:
                sent.set_result(None)
            elif failure.code() in _NOBODY_READS:
                log.warning("no answer to %s-%d offset %d: %s", *_place(request), failure.str())
                sent.set_result(None)
            elif failure.code() in _TOO_LARGE and error is None:
                too_large = ValueError(f"the answer is too large: {failure.str()}")
                self._produce(address, request, None, too_large, sent)
            else:
                sent.set_exception(KafkaException(failure))

        try:
            self._producer.produce(
                address.topic,
                value,
                request.key,
                headers=reply_headers(address, error),
                on_delivery=written,
                partition=-1 if address.partition is None else address.partition,
            )
        except KafkaException as failure:
            written(failure.args[0], None)
        except BufferError as full:
            sent.set_exception(full)


def _place(request: Message) -> tuple[str, int, int]:
    return request.topic, request.partition, request.offset


def _rejected(error: Exception | None) -> None:
    if isinstance(error, Reject):
        raise error
