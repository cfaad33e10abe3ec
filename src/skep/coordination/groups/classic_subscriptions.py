"""Which topics a consumer of the classic protocol has subscribed to: its metadata, as far as the broker reads it.

The bytes are for the leader, and a client may write what it likes into them. Of consumers they begin with a version and
the topics, in every version the same way, so version 0 reads them all.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from skep.base.errors import DecodeError
from skep.wire.entities.request_bounds import RequestBounds

CONSUMER = "consumer"
"""The protocol type of those whose metadata can be read."""

_VERSION_BYTES = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None when the bytes are not a subscription."""
    bounds, read = _reader()
    frame = memoryview(metadata)
    try:
        if len(metadata) < _VERSION_BYTES:
            return None
        # kio believes the lengths that it reads, and these bytes came through unread: first see that they can be.
        bounds.checked(frame, _VERSION_BYTES)
        subscription, _ = read(frame, _VERSION_BYTES)
    except (DecodeError, SerialError, ValueError, OverflowError):
        return None
    return frozenset(subscription.topics)


@functools.cache
def _reader() -> tuple[RequestBounds, Callable[[memoryview, int], tuple[Any, int]]]:
    from kio.schema.consumer_protocol_subscription.v0 import ConsumerProtocolSubscription

    return RequestBounds(ConsumerProtocolSubscription), entity_reader(cast(Any, ConsumerProtocolSubscription))
