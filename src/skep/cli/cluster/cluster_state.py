"""A cluster as ``skep cluster describe`` sees it: its brokers, what each holds and leads, and what is not as it should.

Most of it is in the metadata that any broker gives. How far a follower is behind its leader only the follower's own
broker knows (DescribeLogDirs); all of them are asked at the same time, and one that does not answer is shown as such.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.cluster.cluster_admin import Move, moves_under_way
from skep.client.asking import until_answered
from skep.client.cluster_client import ClusterClient, Node
from skep.client.connection import Connection
from skep.client.errors import ClientError
from skep.wire.apis import DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS

ANSWER_WITHIN_S = 3.0
TOPICS_AT_ONCE = 500
_TOPIC = 2
_MOST_AT_ONCE = 32


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
        """Replicas that should be in sync and are not; one that is only being made is none of them."""
        coming = self.move.adding if self.move else ()
        return [broker for broker in self.replicas if broker not in self.isr and broker not in coming]

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
    """None: it is not there, and holds replicas."""
    rack: str | None
    held: Mapping[TopicPartition, Held] | None
    """None: it did not say."""


@dataclass(frozen=True)
class ClusterState:
    cluster_id: str | None
    controller: int | None
    brokers: list[BrokerState]
    partitions: list[PartitionState]

    @property
    def places(self) -> dict[int, str]:
        """The brokers that are there, with what should not have two replicas of a partition: a rack or a host."""
        return {
            broker.id: broker.rack or f"host {broker.address.rpartition(':')[0]}"
            for broker in self.brokers
            if broker.address is not None
        }

    @property
    def leaders(self) -> "Counter[int]":
        return Counter(partition.leader for partition in self.partitions if partition.leader is not None)

    def lag_of(self, broker: BrokerState) -> int | None:
        """Records that the broker still has to copy, over all partitions that it follows."""
        if broker.held is None:
            return None
        followed = (p.where for p in self.partitions if p.leader != broker.id)
        return sum(broker.held[where].lag for where in followed if where in broker.held)

    @property
    def assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        """Where the replicas are to be in the end; a move that is under way counts as done."""
        return {
            p.where: tuple(b for b in p.replicas if not p.move or b not in p.move.removing) for p in self.partitions
        }


def read_cluster(client: ClusterClient, *, with_replicas: bool = True) -> ClusterState:
    """All of it; without ``with_replicas`` no broker is asked what it holds.

    A broker that gives no answer, or is going away just now, is no failure: another one is asked.
    """
    return until_answered(client, "the cluster", lambda: _read(client, with_replicas))


def _read(client: ClusterClient, with_replicas: bool) -> ClusterState:
    metadata = client.metadata()
    nodes = {broker.node_id: broker for broker in metadata.brokers}
    moves = moves_under_way(client)
    topics = [topic for topic in metadata.topics if topic.error_code is ErrorCode.none]
    min_insync = _min_insync(client, [topic.name for topic in topics])
    partitions = [
        _partition(topic.name, row, nodes, moves, min_insync.get(topic.name, 1))
        for topic in sorted(topics, key=lambda topic: topic.name)
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    ]
    held = _held(nodes.values()) if with_replicas else {}
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
    for begin in range(0, len(topics), TOPICS_AT_ONCE):
        resources = [
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": ["min.insync.replicas"]}
            for name in topics[begin : begin + TOPICS_AT_ONCE]
        ]
        answer = client.ask_node(client.nodes()[0], DESCRIBE_CONFIGS, {"resources": resources})
        for result in answer.results:
            for config in result.configs:
                found[result.resource_name] = int(config.value or 1)
    return found


def _held(nodes: Iterable[Any]) -> dict[int, dict[TopicPartition, Held] | None]:
    """What each broker says that it holds; None for one that does not answer in time."""
    asked = [Node(node.node_id, node.host, node.port) for node in nodes]
    if not asked:
        return {}
    with ThreadPoolExecutor(min(len(asked), _MOST_AT_ONCE)) as threads:
        return dict(zip((node.node_id for node in asked), threads.map(_held_by, asked), strict=True))


def _held_by(node: Node) -> dict[TopicPartition, Held] | None:
    try:
        with Connection(node.host, node.port, client_id="skep-cli", timeout_s=ANSWER_WITHIN_S) as connection:
            answer = connection.ask(DESCRIBE_LOG_DIRS, {"topics": None})
    except ClientError:
        return None
    return {
        TopicPartition(topic.name, row.partition_index): Held(row.partition_size, max(0, row.offset_lag))
        for directory in answer.results
        for topic in directory.topics
        for row in topic.partitions
    }
