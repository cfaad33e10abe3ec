"""The state of a cluster: its brokers, the partitions that each leads and holds, and the unhealthy partitions.

Most of it comes from one Metadata response. The lag of a follower is known to its own broker only (DescribeLogDirs):
that request is sent to all brokers at the same time, and a broker that does not respond is shown as such.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.cluster.cluster_admin import Move, by_topic, current_moves
from skep.cli.connection import unknown_topic
from skep.cli.failures import CommandError
from skep.cli.partition_selection import parse_selection, unknown_partition
from skep.client.cluster_client import ClusterClient, Node
from skep.client.connection import Connection
from skep.client.errors import ClientError
from skep.client.retry import call_with_retries
from skep.client.security.client_security import ClientSecurity
from skep.wire.apis import DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS

BROKER_TIMEOUT_S = 3.0
TOPICS_PER_REQUEST = 500
_TOPIC = 2
_MAX_THREADS = 32


@dataclass(frozen=True)
class Held:
    """One replica on one broker."""

    size: int
    lag: int


@dataclass(frozen=True)
class PartitionState:
    where: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_insync: int = 1
    move: Move | None = None

    @property
    def behind(self) -> list[int]:
        """The replicas that are not in sync, without those that a reassignment is adding."""
        adding = self.move.adding if self.move else ()
        return [broker for broker in self.replicas if broker not in self.isr and broker not in adding]

    @property
    def is_under_min_isr(self) -> bool:
        return self.leader is None or len(self.isr) < min(self.min_insync, len(self.replicas))

    @property
    def troubles(self) -> list[str]:
        found = []
        if self.leader is None:
            found.append("offline")
        elif self.is_under_min_isr:
            found.append("under min ISR")
        if self.behind:
            found.append("under-replicated")
        if self.move:
            found.append("being moved")
        return found


@dataclass(frozen=True)
class BrokerState:
    id: int
    address: str | None
    """None: the broker is not running, but is a replica of some partition."""
    rack: str | None
    held: Mapping[TopicPartition, Held] | None
    """None: the broker did not respond."""


@dataclass(frozen=True)
class ClusterState:
    cluster_id: str | None
    controller: int | None
    brokers: list[BrokerState]
    partitions: list[PartitionState]

    @property
    def places(self) -> dict[int, str]:
        """The running brokers, with the rack or host of each, which should not hold two replicas of a partition."""
        return {
            broker.id: broker.rack or f"host {broker.address.rpartition(':')[0]}"
            for broker in self.brokers
            if broker.address is not None
        }

    @property
    def leaders(self) -> "Counter[int]":
        return Counter(partition.leader for partition in self.partitions if partition.leader is not None)

    def lag_of(self, broker: BrokerState) -> int | None:
        """Returns the number of records that the broker has yet to copy from other leaders."""
        if broker.held is None:
            return None
        followed = (p.where for p in self.partitions if p.leader != broker.id)
        return sum(broker.held[where].lag for where in followed if where in broker.held)

    @property
    def assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The target replicas of each partition: a move in progress counts as done."""
        return {
            p.where: tuple(b for b in p.replicas if not p.move or b not in p.move.removing) for p in self.partitions
        }

    def check_running(self, brokers: Sequence[int]) -> Sequence[int]:
        """Returns ``brokers``. Raises CommandError if one of them is not running."""
        if missing := [str(broker) for broker in brokers if broker not in self.places]:
            running = ", ".join(map(str, self.places))
            raise CommandError(f"broker {', '.join(missing)} is not running; the running brokers are {running}")
        return brokers

    def selected_partitions(self, selections: Iterable[str] | None) -> list[TopicPartition]:
        """Returns all partitions, or those that ``orders`` or ``orders:0,2`` select.

        Raises CommandError for a topic or partition that does not exist.
        """
        if not selections:
            return [partition.where for partition in self.partitions]
        known = by_topic(partition.where for partition in self.partitions)
        found = set()
        for text in selections:
            topic, numbers = parse_selection(text)
            if topic not in known:
                raise unknown_topic(topic, known)
            for number in known[topic] if numbers is None else numbers:
                if number not in known[topic]:
                    raise unknown_partition(topic, number, known[topic])
                found.add(TopicPartition(topic, number))
        return sorted(found)


def read_cluster(client: ClusterClient, *, with_replicas: bool = True) -> ClusterState:
    """Reads the state; with ``with_replicas`` also the sizes and lags of replicas, from every broker.

    If a broker does not respond or is shutting down, the request is repeated with another one.
    """
    return call_with_retries(client, "reading the cluster", lambda: _read(client, with_replicas))


def _read(client: ClusterClient, with_replicas: bool) -> ClusterState:
    metadata = client.metadata()
    nodes = {broker.node_id: broker for broker in metadata.brokers}
    moves = current_moves(client)
    topics = [topic for topic in metadata.topics if topic.error_code is ErrorCode.none]
    min_insync = _min_insync(client, [topic.name for topic in topics])
    partitions = [
        _partition(topic.name, row, nodes, moves, min_insync.get(topic.name, 1))
        for topic in sorted(topics, key=lambda topic: topic.name)
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    ]
    held = _held(nodes.values(), client.security) if with_replicas else {}
    named = {broker for partition in partitions for broker in partition.replicas} | set(nodes)
    controller = getattr(metadata, "controller_id", -1)
    return ClusterState(
        getattr(metadata, "cluster_id", None),
        controller if controller >= 0 else None,
        [_broker(broker, nodes.get(broker), held.get(broker)) for broker in sorted(named)],
        partitions,
    )


def _partition(
    topic: str, row: Any, nodes: Mapping[int, Any], moves: Mapping[TopicPartition, Move], min_insync: int
) -> PartitionState:
    where = TopicPartition(topic, row.partition_index)
    leader = row.leader_id if row.leader_id in nodes else None
    return PartitionState(where, leader, tuple(row.replica_nodes), tuple(row.isr_nodes), min_insync, moves.get(where))


def _broker(broker_id: int, node: Any, held: Mapping[TopicPartition, Held] | None) -> BrokerState:
    if node is None:
        return BrokerState(broker_id, None, None, None)
    return BrokerState(broker_id, f"{node.host}:{node.port}", getattr(node, "rack", None), held)


def _min_insync(client: ClusterClient, topics: Sequence[str]) -> dict[str, int]:
    found = {}
    for begin in range(0, len(topics), TOPICS_PER_REQUEST):
        resources = [
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": ["min.insync.replicas"]}
            for name in topics[begin : begin + TOPICS_PER_REQUEST]
        ]
        response = client.ask_node(client.nodes()[0], DESCRIBE_CONFIGS, {"resources": resources})
        for result in response.results:
            for config in result.configs:
                found[result.resource_name] = int(config.value or 1)
    return found


def _held(nodes: Iterable[Any], security: ClientSecurity) -> dict[int, dict[TopicPartition, Held] | None]:
    """Returns the replicas that each broker holds; None for a broker that does not respond in time."""
    targets = [Node(node.node_id, node.host, node.port) for node in nodes]
    if not targets:
        return {}
    with ThreadPoolExecutor(min(len(targets), _MAX_THREADS)) as threads:
        return dict(
            zip((node.node_id for node in targets), threads.map(partial(_held_by, security), targets), strict=True)
        )


def _held_by(security: ClientSecurity, node: Node) -> dict[TopicPartition, Held] | None:
    try:
        with Connection(
            node.host, node.port, client_id="skep-cli", timeout_s=BROKER_TIMEOUT_S, security=security
        ) as connection:
            response = connection.ask(DESCRIBE_LOG_DIRS, {"topics": None})
    except ClientError:
        return None
    return {
        TopicPartition(topic.name, row.partition_index): Held(row.partition_size, max(0, row.offset_lag))
        for directory in response.results
        for topic in directory.topics
        for row in topic.partitions
    }
