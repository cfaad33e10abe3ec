"""One row: how the broker is prepared, and what the client then does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.raw_client import RawClient
from skep.testing import EmbeddedBroker
from skep.wire.apis import Api
from skep.wire.client_codec import encode_request
from skep.wire.primitives import INT32

CLIENT_ID = "bench"


def framed(request: bytes) -> bytes:
    return INT32.pack(len(request)) + request


def request(api: Api, version: int, body: Mapping[str, Any], correlation_id: int = 1) -> bytes:
    """A whole frame."""
    return framed(encode_request(api, version, correlation_id, CLIENT_ID, body))


@dataclass(frozen=True)
class Stall:
    """``act`` is measured. ``prepare`` is not: it makes topics and fills them. Each stall has a broker of its own.

    With several ``brokers`` both are given the cluster, and broker 1 is probed; with none there is nothing to probe.
    Where ``act`` returns a number, that is what is reported, in seconds.
    """

    name: str
    what: str
    act: Callable[[Any], float | None]
    prepare: Callable[[Any], None] = lambda broker: None
    options: Mapping[str, str] = field(default_factory=dict)
    brokers: int = 1
    restarts: bool = False
    """Whether the broker is started again between ``prepare`` and ``act``: what it loads is then measured."""


def asking(*frames: bytes) -> Callable[[EmbeddedBroker], None]:
    """An ``act`` that sends all ``frames`` at once on one connection and takes all responses.

    A broker may also close the connection: that is its response to a frame it cannot accept.
    """

    def act(broker: EmbeddedBroker) -> None:
        with RawClient(broker.bootstrap_servers) as client:
            try:
                client.send(b"".join(frames))
                for _ in frames:
                    client.receive()
            except (RuntimeError, ConnectionError):
                pass

    return act
