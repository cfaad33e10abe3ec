"""Requests and responses as connections, the dispatcher and handlers pass them to each other."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from skep.base.loop.slicer import Work
from skep.broker.refused_batches import RefusedBatches
from skep.security.access import FULL_ACCESS, Access
from skep.security.quotas.client_quotas import ClientQuotas, Throttle
from skep.security.sasl.sasl_session import SaslSession
from skep.wire.apis import Api
from skep.wire.codec import Body

B = TypeVar("B")


class ClientConnection(Protocol):
    """The connection of a request, for state that ends with it."""

    when_lost: "Callable[[Any], None] | None"
    """Called with the connection when its client sends nothing more, and when it is closed."""
    is_lost: bool
    """Whether that has happened. Nobody is called for what begins later."""
    access: Access
    """What the client may do. It is another object after the client has authenticated itself again."""
    listener_name: str
    is_local: bool
    """Whether the client is on this machine, because others cannot reach the listener."""
    sasl: SaslSession | None
    """None where clients do not authenticate with SASL."""
    refused_batches: RefusedBatches | None
    """Made by Produce when it refuses the first batch."""
    quotas: ClientQuotas | None
    """Those of the client, kept from its last request."""

    def mute(self, duration_s: float) -> None:
        """Takes no further request for so long. Responses are still sent."""
        ...

    def end_after_response(self, reason: str) -> None:
        """Closes the connection when the response to the request that is being handled has been sent."""
        ...


@dataclass(slots=True)
class Request(Generic[B]):
    """A request. ``body`` is kio's object of the version that the client chose.

    ``B`` is its class in ``wire/entities/request_types.py``, which only mypy reads.

    The body of a long request is not decoded yet: ``body`` is None and ``undecoded`` is the work that decodes it. The
    dispatcher gives handlers a request with the body.

    An exclusive request holds back the requests behind it until its response is sent, whatever its API: it is handled
    in slices, and no other request of the connection may be handled in between. Long requests are exclusive, and a
    handler may set ``is_exclusive`` when it finds that it needs slices.

    Besides ``is_exclusive`` only ``connection`` and ``access`` change, which the connection sets, and ``throttle``,
    which is None unless the client has quotas. The class is not frozen because that costs a microsecond a request.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    body: B
    size: int = 0
    undecoded: Work[Any] | None = None
    is_exclusive: bool = False
    connection: ClientConnection | None = None
    access: Access = FULL_ACCESS
    throttle: Throttle | None = None

    @property
    def listener_name(self) -> str:
        """The listener that the client uses. Empty for a request that came over no connection."""
        return "" if self.connection is None else self.connection.listener_name

    def who(self) -> str:
        return (
            f"{self.api.name} v{self.version} of {self.client_host} (client id {self.client_id!r}, {self.size} bytes)"
        )


AnyRequest = Request[Any]
"""A request of any API, for those who do not read its body."""

Parts = Sequence[Sized]
"""An encoded response without its frame length: bytes and FileRegions."""

NO_RESPONSE: Parts = ()
"""The response to a Produce with acks=0: nothing is sent."""

Response = Body | Parts
"""What a handler returns: a mapping for the codec, or parts that are already encoded."""


class CloseConnection(Exception):
    """The request has no response and the connection is closed, e.g. after a failed Produce with acks=0.

    The message is the reason, for the log.
    """
