"""A cluster from outside: its brokers found from a few addresses, requests sent to the broker that can answer them.

Which broker that is changes: a coordinator moves, or is still loading. Such answers (``RETRIABLE``) are no failure; the
broker is looked up again and asked again until the time is over.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from skep.base.clock import Clock, SystemClock
from skep.base.errors import ErrorCode, KafkaError
from skep.client.connection import Connection
from skep.client.errors import ClientError, Unreachable
from skep.wire.apis import FIND_COORDINATOR, METADATA, Api
from skep.wire.codec import Body

DEFAULT_PORT = 9092
PAUSE_S = 0.1
SHORTEST_REQUEST_S, LONGEST_REQUEST_S = 1.0, 10.0
LONGEST_CONNECT_S = 5.0
SECURE = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
GROUP, TRANSACTION = 0, 1
RETRIABLE = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
    }
)


class Node(NamedTuple):
    node_id: int
    host: str
    port: int


class ClusterClient:
    """Owns the connections that nobody uses at the moment, and one to the first address that answered.

    Used by one thread at a time; a thread of its own needs a client of its own.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "skep",
        timeout_s: float = 30.0,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._addresses = parse_addresses(bootstrap)
        self._client_id = client_id
        self.timeout_s = timeout_s
        # Of the whole time one silent broker takes a part, so that there is some left to ask another.
        self.request_timeout_s = request_timeout_s(timeout_s)
        self.clock = clock or SystemClock()
        self.sleep = sleep
        self._first: Connection | None = None
        # Brokers that the cluster had when last asked: they go on answering when the given addresses are down.
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

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        """Brokers and topics; of all topics when none is named. Creates none."""
        named = None if topics is None else [{"name": topic} for topic in topics]
        answer = self._ask_any(METADATA, {"topics": named, "allow_auto_topic_creation": False})
        self._seen = [(node.host, node.port) for node in _nodes(answer)]
        return answer

    def nodes(self) -> list[Node]:
        return _nodes(self.metadata(()))

    def look_elsewhere(self) -> None:
        """The next question of who leads or coordinates goes to another broker.

        To be called when whoever was named refuses or is silent. A broker that is cut off from the metadata store may
        name itself for as long as that lasts.
        """
        if self._first is not None:
            self._distrusted = self._first.peer
            self._first.close()
            self._first = None

    def ask_node(self, node: Node, api: Api, body: Body) -> Any:
        try:
            connection = self.take_connection(node)
        except Unreachable:
            self.look_elsewhere()
            raise
        try:
            return connection.ask(api, body)
        except Unreachable:
            self.look_elsewhere()
            raise
        finally:
            self.give_back(node, connection)

    def take_connection(self, node: Node) -> Connection:
        """A connection for the caller alone, who may have several requests under way on it, until ``give_back``."""
        idle = self._idle.get(node, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return self._connect(node.host, node.port)

    def give_back(self, node: Node, connection: Connection) -> None:
        """For the next one who needs it. One with requests under way, or broken, is closed: connecting is cheap."""
        if connection.unanswered or connection.fileno() < 0:
            connection.close()
        else:
            connection.set_timeout(self.request_timeout_s)
            self._idle.setdefault(node, []).append(connection)

    def ask_coordinator(
        self, kind: int, key: str, api: Api, body: Body, code_of: Callable[[Any], ErrorCode]
    ) -> tuple[Node, Any]:
        """The broker that looks after a group or a transactional id, and its answer.

        ``code_of`` finds in an answer the code that says whether to ask again. Any other code is the caller's to read.
        """
        deadline = self.clock.monotonic() + self.timeout_s
        while True:
            node, code, detail = self._find_coordinator(kind, key)
            if node is not None:
                answer = self.ask_node(node, api, body)
                code = code_of(answer)
                if code not in RETRIABLE:
                    return node, answer
                if code is ErrorCode.not_coordinator:
                    self.look_elsewhere()
            if code not in RETRIABLE or self.clock.monotonic() > deadline:
                raise KafkaError(code, detail or f"no coordinator for '{key}': {code.name}")
            self.sleep(PAUSE_S)

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], Node]:
        """The leader of every partition of these topics that has one. KafkaError for a topic that is not there."""
        metadata = self.metadata(topics)
        nodes = {node.node_id: node for node in _nodes(metadata)}
        found = {}
        for topic in metadata.topics:
            if topic.error_code is not ErrorCode.none:
                raise KafkaError(topic.error_code, f"topic '{topic.name}': {topic.error_code.name}")
            for partition in topic.partitions:
                if partition.leader_id in nodes:
                    found[topic.name, partition.partition_index] = nodes[partition.leader_id]
        return found

    def _find_coordinator(self, kind: int, key: str) -> tuple[Node | None, ErrorCode, str]:
        answer = self._ask_any(FIND_COORDINATOR, {"key": key, "key_type": kind, "coordinator_keys": [key]})
        # From version 4 on the answer is a list, with one entry for each key.
        found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
        if found.error_code is not ErrorCode.none:
            return None, found.error_code, getattr(found, "error_message", None) or ""
        return Node(found.node_id, found.host, found.port), ErrorCode.none, ""

    def _ask_any(self, api: Api, body: Body) -> Any:
        first, self._first = self._first or self._connect_first(), None
        try:
            answer = first.ask(api, body)
        except BaseException as error:
            # Also when the caller is interrupted: the answer would be taken for that to the next request.
            first.close()
            self._distrusted = first.peer if isinstance(error, Unreachable) else None
            raise
        self._first = first
        return answer

    def _connect_first(self) -> Connection:
        failures = []
        others = [address for address in self._seen if address not in self._addresses]
        # The one that gave no answer, or an old one, last: it may take connections still.
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
        )


def request_timeout_s(timeout_s: float) -> float:
    """How long one request may take of the time that there is for an answer: a third, within reason."""
    return min(timeout_s, max(SHORTEST_REQUEST_S, min(LONGEST_REQUEST_S, timeout_s / 3)))


def _nodes(metadata: Any) -> list[Node]:
    return [Node(broker.node_id, broker.host, broker.port) for broker in metadata.brokers]


def parse_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """``a:1,b,[::1]:3`` as hosts and ports, with the protocol in front (``PLAINTEXT://``) taken off.

    Those with TLS or SASL are refused: this client does not speak them.
    """
    found = []
    for text in filter(None, (part.strip() for part in bootstrap.split(","))):
        protocol, _, address = text.rpartition("://")
        if protocol.upper() in SECURE:
            raise ClientError(f"'{text}': this client speaks neither TLS nor SASL, only PLAINTEXT")
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, str(DEFAULT_PORT)
        if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ClientError(f"'{text}' is not an address like HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ClientError("no address of a broker is given")
    return found
