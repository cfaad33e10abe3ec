"""Shared connections to the other brokers, for short requests."""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from skep.client.errors import Unreachable
from skep.client.peer.peer import Peer
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.wire.apis import Api
from skep.wire.codec import Body


class BrokerAddress(Protocol):
    """The address of a broker, as the metadata records have it."""

    @property
    def id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class _Shared(NamedTuple):
    host: str
    port: int
    peer: Peer
    connected: "asyncio.Task[None]"


class Peers:
    """Owns one connection for each broker that was asked, at the address that it had then.

    The first request connects; requests that come meanwhile wait for the same connection. The next request after the
    end of a connection makes a new one. No request is repeated: one that was in flight may have been carried out.
    """

    def __init__(self, client_id: str, timeout_s: float, security: ClientSecurity = PLAINTEXT) -> None:
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._security = security
        self._shared: dict[int, _Shared] = {}
        self._is_closed = False

    async def ask(
        self,
        broker: BrokerAddress,
        api: Api,
        body: Body,
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Returns the response to one request; raises ClientError or KafkaError without one.

        Cancelling leaves the connection to those who share it; the request may have been carried out or not.
        """
        if self._is_closed:
            raise Unreachable(f"the connections to other brokers, such as {broker.host}:{broker.port}, are closed")
        shared = self._shared_with(broker)
        # Shielded: a cancelled caller must not cancel the connection that others wait for.
        await asyncio.shield(shared.connected)
        return await shared.peer.ask(api, body, version=version, timeout_s=timeout_s)

    def retain(self, brokers: Iterable[BrokerAddress]) -> None:
        """Closes the connections to brokers that are not among these, or have another address now."""
        addresses = {broker.id: (broker.host, broker.port) for broker in brokers}
        for broker_id, shared in list(self._shared.items()):
            if addresses.get(broker_id) != (shared.host, shared.port):
                del self._shared[broker_id]
                shared.peer.close()

    async def close(self) -> None:
        """Closes all connections. Requests in flight and later ones raise Unreachable."""
        self._is_closed = True
        connecting = [shared.connected for shared in self._shared.values()]
        self.retain(())
        await asyncio.gather(*connecting, return_exceptions=True)

    def _shared_with(self, broker: BrokerAddress) -> _Shared:
        shared = self._shared.get(broker.id)
        if shared is not None:
            if (shared.host, shared.port) == (broker.host, broker.port) and not shared.peer.is_closed:
                return shared
            shared.peer.close()
        peer = Peer(
            broker.host,
            broker.port,
            client_id=self._client_id,
            timeout_s=self._timeout_s,
            security=self._security,
        )
        connected = asyncio.get_running_loop().create_task(peer.connect(), name=f"connect to {peer.address}")
        connected.add_done_callback(_seen)
        shared = self._shared[broker.id] = _Shared(broker.host, broker.port, peer, connected)
        return shared


def _seen(connected: "asyncio.Task[None]") -> None:
    """Retrieves the error, so that asyncio does not report it as lost when every caller was cancelled."""
    if not connected.cancelled():
        connected.exception()
