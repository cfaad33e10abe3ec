"""A client of a cluster: finds the brokers from a few addresses and sends each request to the right one.

The right broker changes: a coordinator moves, or is still loading. Such codes (``retry.RETRIABLE``) are no failure;
``ask_coordinator`` looks the coordinator up again and repeats the request until its time is over.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from skep.base.clock import Clock, SystemClock
from skep.base.errors import ErrorCode
from skep.client.connection import Connection
from skep.client.errors import ClientError, Unreachable
from skep.client.retry import RETRIABLE, Retry, check, check_topic
from skep.client.security.client_security import PLAINTEXT, PROTOCOLS, ClientSecurity
from skep.wire.apis import FIND_COORDINATOR, METADATA, Api
from skep.wire.codec import Body

DEFAULT_PORT = 9092
SHORTEST_REQUEST_S, LONGEST_REQUEST_S = 1.0, 10.0
LONGEST_CONNECT_S = 5.0
GROUP, TRANSACTION = 0, 1

T = TypeVar("T")


class Node(NamedTuple):
    node_id: int
    host: str
    port: int


class ClusterClient:
    """Owns the idle connections, and one to the first address that accepts connections, for metadata.

    Not for several threads at a time: each thread needs a client of its own.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "skep",
        timeout_s: float = 30.0,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._addresses = parse_addresses(bootstrap, security.protocol)
        self._security = security
        self._client_id = client_id
        self.timeout_s = timeout_s
        # A silent broker uses only a part of the whole time, so that there is time left for another one.
        self.request_timeout_s = request_timeout_s(timeout_s)
        self.clock = clock or SystemClock()
        self.sleep = sleep
        self._first: Connection | None = None
        # The brokers of the last Metadata response: tried when the given addresses are down.
        self._seen: list[tuple[str, int]] = []
        self._distrusted: tuple[str, int] | None = None
        self._idle: dict[Node, list[Connection]] = {}

    def close(self) -> None:
        for connection in [self._first, *(one for idle in self._idle.values() for one in idle)]:
            if connection is not None:
                connection.close()
        self._first, self._idle = None, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def security(self) -> ClientSecurity:
        return self._security

    def connect(self) -> None:
        """Connects to the first address that accepts connections. Raises Unreachable at once if none does, and
        SecurityFailure if it refuses our settings."""
        self._first = self._first or self._connect_first()

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        """Returns the Metadata response for these topics, or for all. Creates no topic."""
        named = None if topics is None else [{"name": topic} for topic in topics]
        response = self._ask_any(METADATA, {"topics": named, "allow_auto_topic_creation": False})
        self._seen = [(node.host, node.port) for node in _nodes(response)]
        return response

    def nodes(self) -> list[Node]:
        return _nodes(self.metadata(()))

    def switch_metadata_broker(self) -> None:
        """Sends the next lookup of a leader or a coordinator to another broker.

        To be called when the broker that a lookup returned refuses or is silent. A broker that is cut off from the
        metadata store may name itself for as long as that lasts.
        """
        if self._first is not None:
            self._distrusted = self._first.peer
            self._first.close()
            self._first = None

    def ask_node(self, node: Node, api: Api, body: Body) -> Any:
        """Returns the response of one broker."""
        return self._with_connection(node, lambda connection: connection.ask(api, body))

    def ask_node_raw(self, node: Node, api: Api, encode: Callable[[int], bytes]) -> tuple[int, memoryview]:
        """Returns the version and the bytes of a response, header included. ``encode`` returns the body for a
        version."""

        def ask(connection: Connection) -> tuple[int, memoryview]:
            version = connection.version_of(api)
            connection.send(api, encode(version), version=version)
            return version, connection.receive_frame()

        return self._with_connection(node, ask)

    def _with_connection(self, node: Node, ask: Callable[[Connection], T]) -> T:
        try:
            connection = self.acquire_connection(node)
            try:
                return ask(connection)
            finally:
                self.release_connection(node, connection)
        except Unreachable:
            self.switch_metadata_broker()
            raise

    def acquire_connection(self, node: Node) -> Connection:
        """Returns a connection for the caller alone, until ``release_connection``."""
        idle = self._idle.get(node, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return self._connect(node.host, node.port)

    def release_connection(self, node: Node, connection: Connection) -> None:
        """Keeps the connection for the next request. One that is broken or has requests in flight is closed:
        connecting is cheap."""
        if connection.in_flight or connection.fileno() < 0:
            connection.close()
        else:
            connection.set_timeout(self.request_timeout_s)
            connection.frames.drop_spare()
            self._idle.setdefault(node, []).append(connection)

    def ask_coordinator(
        self, kind: int, key: str, api: Api, body: Body, code_of: Callable[[Any], ErrorCode]
    ) -> tuple[Node, Any]:
        """Returns the coordinator of a group or a transactional id, and its response.

        ``code_of`` finds the code in a response. A retriable one costs another lookup and another attempt, until
        TimedOut; any other is returned with the response. A lost connection is raised at once.
        """
        retry = Retry(self, f"{api.name} of '{key}'")
        while True:
            node, code, detail = self._find_coordinator(kind, key)
            if node is not None:
                response = self.ask_node(node, api, body)
                code = code_of(response)
                if code not in RETRIABLE:
                    return node, response
                if code is ErrorCode.not_coordinator:
                    self.switch_metadata_broker()
            elif code not in RETRIABLE:
                check(code, f"no coordinator for '{key}'", detail)
            retry.wait(detail or code.name)

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], Node]:
        """Returns the leader of every partition of these topics that has one. Raises KafkaError for a missing topic."""
        metadata = self.metadata(topics)
        nodes = {node.node_id: node for node in _nodes(metadata)}
        found = {}
        for topic in metadata.topics:
            check_topic(topic.error_code, topic.name)
            for partition in topic.partitions:
                if partition.leader_id in nodes:
                    found[topic.name, partition.partition_index] = nodes[partition.leader_id]
        return found

    def _find_coordinator(self, kind: int, key: str) -> tuple[Node | None, ErrorCode, str]:
        response = self._ask_any(FIND_COORDINATOR, {"key": key, "key_type": kind, "coordinator_keys": [key]})
        # From version 4 on the response is a list, with one entry for each key.
        found = response.coordinators[0] if hasattr(response, "coordinators") else response
        if found.error_code is not ErrorCode.none:
            return None, found.error_code, getattr(found, "error_message", None) or ""
        return Node(found.node_id, found.host, found.port), ErrorCode.none, ""

    def _ask_any(self, api: Api, body: Body) -> Any:
        first, self._first = self._first or self._connect_first(), None
        try:
            response = first.ask(api, body)
        except BaseException as error:
            # Also when the caller is interrupted: the response would be taken for that of the next request.
            first.close()
            self._distrusted = first.peer if isinstance(error, Unreachable) else None
            raise
        self._first = first
        return response

    def _connect_first(self) -> Connection:
        failures = []
        others = [address for address in self._seen if address not in self._addresses]
        # The broker whose last response was missing or stale comes last: it may still accept connections.
        for host, port in sorted([*self._addresses, *others], key=lambda address: address == self._distrusted):
            try:
                return self._connect(host, port)
            except Unreachable as error:
                failures.append(str(error))
        raise Unreachable("; ".join(failures))

    def _connect(self, host: str, port: int) -> Connection:
        return Connection(
            host,
            port,
            client_id=self._client_id,
            timeout_s=self.request_timeout_s,
            connect_timeout_s=min(LONGEST_CONNECT_S, self.request_timeout_s),
            security=self._security,
        )


def request_timeout_s(timeout_s: float) -> float:
    """Returns how long one request may take of the whole time: a third, between 1 s and 10 s."""
    return min(timeout_s, max(SHORTEST_REQUEST_S, min(LONGEST_REQUEST_S, timeout_s / 3)))


def _nodes(metadata: Any) -> list[Node]:
    return [Node(broker.node_id, broker.host, broker.port) for broker in metadata.brokers]


def parse_addresses(bootstrap: str, security_protocol: str = PLAINTEXT.protocol) -> list[tuple[str, int]]:
    """Returns the hosts and ports of ``a:1,b,[::1]:3``, without a protocol in front (``PLAINTEXT://``).

    Raises ClientError for a protocol that is not the client's: the settings of TLS and SASL have to be given with it.
    """
    found = []
    for text in filter(None, (part.strip() for part in bootstrap.split(","))):
        protocol, _, address = text.rpartition("://")
        if protocol.upper() in PROTOCOLS and protocol.upper() != security_protocol:
            raise ClientError(
                f"'{text}': the client has security.protocol={security_protocol}; set it, or drop '{protocol}://'"
            )
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, str(DEFAULT_PORT)
        if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ClientError(f"'{text}' is not an address like HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ClientError("no address of a broker is given")
    return found


class _Shared(threading.local):
    """The clients of one thread: a client is for one thread at a time."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.clients: dict[Any, ClusterClient] = {}


_shared = _Shared()


def shared_cluster(bootstrap: str, **options: Any) -> ClusterClient:
    """Returns the client of this process and thread for these arguments, so that connections are reused.

    It is never closed. A forked process gets its own: on a socket that two processes share, each would receive
    responses of the other.
    """
    if _shared.process_id != os.getpid():
        # Closes our copies of the descriptors; the parent's connections stay.
        for inherited in _shared.clients.values():
            inherited.close()
        _shared.process_id, _shared.clients = os.getpid(), {}
    key = (bootstrap, *sorted(options.items()))
    client = _shared.clients.get(key)
    if client is None:
        client = _shared.clients[key] = ClusterClient(bootstrap, **options)
    return client
