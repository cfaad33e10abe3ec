"""Topics as a client sees them: names, ids, how many partitions, and who leads one."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import Unreachable
from skep.client.retry import Patience

NO_ID = UUID(int=0)
"""Of a topic on a broker from before topics had ids."""
GONE_AFTER_S = 1.0
"""How long a topic is said to be gone before that is believed: a broker may be behind in what it knows."""
_PASSING = frozenset({ErrorCode.leader_not_available})


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID
    partition_count: int


class Place(NamedTuple):
    """Where a partition can be read at the moment; no leader while there is none, or no such partition."""

    topic_id: UUID
    leader: Node | None


def describe_topics(cluster: ClusterClient, names: Sequence[str]) -> dict[str, TopicInfo]:
    """In the order of the names. KafkaError, which names the topic, when one is not there."""
    if not names:
        return {}
    found = {info.name: info for info, _ in _described(_metadata(cluster, names))}
    return {name: found[name] for name in names}


def list_topics(cluster: ClusterClient) -> list[TopicInfo]:
    """Sorted by name, without the cluster's own (``__consumer_offsets``)."""
    answer = _metadata(cluster, None)
    return sorted(info for info, is_internal in _described(answer) if not is_internal)


def place_of(cluster: ClusterClient, topic: str, partition: int) -> Place:
    """Asks once. KafkaError when the topic is not there."""
    answer = cluster.metadata([topic])
    [found] = answer.topics
    if found.error_code is not ErrorCode.none and found.error_code not in _PASSING:
        raise KafkaError(found.error_code, f"topic '{topic}': {found.error_code.name}")
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port) for broker in answer.brokers}
    leader = next((one.leader_id for one in found.partitions if one.partition_index == partition), None)
    return Place(id_of(found), nodes.get(leader))


def _metadata(cluster: ClusterClient, names: Iterable[str] | None) -> Any:
    patience = Patience(cluster, cluster.timeout_s, "topics")
    while True:
        try:
            return cluster.metadata(names)
        except Unreachable as error:
            patience.wait(str(error))


def _described(answer: Any) -> Iterable[tuple[TopicInfo, bool]]:
    for topic in answer.topics:
        if topic.error_code is not ErrorCode.none and topic.error_code not in _PASSING:
            raise KafkaError(topic.error_code, f"topic '{topic.name}': {topic.error_code.name}")
        yield (
            TopicInfo(topic.name, id_of(topic), len(topic.partitions)),
            bool(getattr(topic, "is_internal", False)),
        )


def id_of(topic: Any) -> UUID:
    topic_id = getattr(topic, "topic_id", None)
    return NO_ID if topic_id is None else UUID(int=topic_id.int)
