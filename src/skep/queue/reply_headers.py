"""The headers of requests and replies, with the names and bytes of Spring for Apache Kafka.

    kafka_correlationId    16 bytes of a random UUID; an answer has those of its request (Spring: any bytes)
    kafka_replyTopic       the name of the topic for the answer, UTF-8
    kafka_replyPartition   its partition, 4 bytes, big endian; without it the answer goes to any partition
    kafka_exception-fqcn, kafka_exception-message   UTF-8, in an answer whose handler raised

Spring writes the first three in ReplyingKafkaTemplate, and reads them where a listener has ``@SendTo``. It has no
convention for errors: an application gives ReplyingKafkaTemplate a ``replyErrorChecker``. The last two are the names
that Spring has for exceptions in records (``KafkaHeaders.EXCEPTION_FQCN``, ``EXCEPTION_MESSAGE``).
"""

import struct
from typing import NamedTuple

from skep.queue.message import Message

CORRELATION_ID = "kafka_correlationId"
REPLY_TOPIC = "kafka_replyTopic"
REPLY_PARTITION = "kafka_replyPartition"
EXCEPTION_CLASS = "kafka_exception-fqcn"
EXCEPTION_MESSAGE = "kafka_exception-message"
TIME_TO_LIVE = "ttl-ms"
"""Skep's own: how many milliseconds after its timestamp a request is of interest, as text."""

Headers = list[tuple[str, str | bytes | None]]
"""As librdkafka's producer takes them."""

_PARTITION = struct.Struct(">i")
_INTERNAL = "__"


class ReplyAddress(NamedTuple):
    """Where the answer to a request goes. ``partition`` is None where the request names none."""

    topic: str
    partition: int | None
    correlation_id: bytes | None


def request_headers(address: ReplyAddress) -> Headers:
    headers: Headers = [(REPLY_TOPIC, address.topic.encode())]
    if address.partition is not None:
        headers.append((REPLY_PARTITION, _PARTITION.pack(address.partition)))
    return [*headers, (CORRELATION_ID, address.correlation_id)]


def reply_address(request: Message) -> ReplyAddress | None:
    """Returns where the answer goes, None if the request wants none. Raises ValueError if its headers make no sense."""
    topic = request.header(REPLY_TOPIC)
    if topic is None:
        return None
    name = topic.decode()
    if name.startswith(_INTERNAL):
        raise ValueError(f"{REPLY_TOPIC}={name}: an answer is not written to an internal topic")
    return ReplyAddress(name, _partition(request.header(REPLY_PARTITION)), request.header(CORRELATION_ID))


def _partition(value: bytes | None) -> int | None:
    if value is None:
        return None
    if len(value) != _PARTITION.size or (partition := int(_PARTITION.unpack(value)[0])) < 0:
        raise ValueError(f"{REPLY_PARTITION}={value.hex()}: must be a partition in four bytes")
    return partition


def reply_headers(address: ReplyAddress, error: BaseException | None = None) -> Headers:
    headers: Headers = [] if address.correlation_id is None else [(CORRELATION_ID, address.correlation_id)]
    if error is not None:
        headers += [(EXCEPTION_CLASS, _name(error).encode()), (EXCEPTION_MESSAGE, str(error).encode())]
    return headers


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_in(reply: Message) -> tuple[str, str] | None:
    """Returns the class and the message of the exception in an answer."""
    kind, text = reply.header(EXCEPTION_CLASS), reply.header(EXCEPTION_MESSAGE)
    if kind is None and text is None:
        return None
    return (kind or b"").decode(errors="replace"), (text or b"").decode(errors="replace")
