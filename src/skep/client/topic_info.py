"""Topics as a client sees them: names, ids, number of partitions, and the leader of a partition."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode
from skep.client.cluster_client import ClusterClient, Node
from skep.client.retry import call_with_retries, check_topic

NO_ID = UUID(int=0)
"""The id of a topic on a broker from before topics had ids."""
GONE_AFTER_S = 1.0
"""How long a topic must be reported missing before the client believes it: a broker may lag behind the cluster."""


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID
    partition_count: int


class PartitionLeader(NamedTuple):
    """``leader`` is None while the partition has none, and for a partition that does not exist."""

    topic_id: UUID
    leader: Node | None


def describe_topics(cluster: ClusterClient, names: Sequence[str]) -> dict[str, TopicInfo]:
    """Returns the topics in the order of the names. Raises KafkaError, which names the topic, for a missing one."""
    if not names:
        return {}
    found = {info.name: info for info, _ in _described(_metadata(cluster, names))}
    return {name: found[name] for name in names}


def list_topics(cluster: ClusterClient) -> list[TopicInfo]:
    """Returns all topics sorted by name, without internal ones (``__consumer_offsets``)."""
    response = _metadata(cluster, None)
    return sorted(info for info, is_internal in _described(response) if not is_internal)


def find_leader(cluster: ClusterClient, topic: str, partition: int) -> PartitionLeader:
    """Sends one Metadata request, without retries. Raises KafkaError when the topic does not exist."""
    response = cluster.metadata([topic])
    [found] = response.topics
    _check_exists(found)
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port) for broker in response.brokers}
    leader = next((one.leader_id for one in found.partitions if one.partition_index == partition), None)
    return PartitionLeader(id_of(found), nodes.get(leader))


def _metadata(cluster: ClusterClient, names: Iterable[str] | None) -> Any:
    return call_with_retries(cluster, "topics", lambda: cluster.metadata(names))


def _described(response: Any) -> Iterable[tuple[TopicInfo, bool]]:
    for topic in response.topics:
        _check_exists(topic)
        yield (
            TopicInfo(topic.name, id_of(topic), len(topic.partitions)),
            bool(getattr(topic, "is_internal", False)),
        )


def _check_exists(topic: Any) -> None:
    # A topic that is being created exists, though its partitions have no leader yet.
    if topic.error_code is not ErrorCode.leader_not_available:
        check_topic(topic.error_code, topic.name)


def id_of(topic: Any) -> UUID:
    topic_id = getattr(topic, "topic_id", None)
    return NO_ID if topic_id is None else UUID(int=topic_id.int)
