"""Admin requests about topics with confluent-kafka's AdminClient: create, list, describe, alter and delete."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports without saying so
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster, unknown_topic
from skep.cli.failures import CommandError, reason
from skep.cli.log_offsets import earliest_offsets, latest_offsets

_ZERO_UUID = "A" * 22
CLUSTER_DEFAULT = -1
"""As a number of partitions or replicas: the cluster's default."""


@dataclass(frozen=True)
class PartitionView:
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    earliest: int | None = None
    latest: int | None = None


@dataclass(frozen=True)
class TopicView:
    name: str
    topic_id: str | None
    partitions: list[PartitionView]
    configs: dict[str, str] = field(default_factory=dict)
    """The configs that differ from the defaults."""
    min_insync_replicas: int = 1

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = CLUSTER_DEFAULT,
    replication_factor: int = CLUSTER_DEFAULT,
    configs: Mapping[str, str] | None = None,
    assignment: list[list[int]] | None = None,
) -> bool:
    """Creates a topic. Returns False if it exists already."""
    cluster.metadata()
    # An assignment implies the numbers of partitions and replicas; the protocol requires both to be absent then.
    placed = {"replica_assignment": assignment} if assignment else {"replication_factor": replication_factor}
    topic = NewTopic(name, len(assignment) if assignment else partitions, config=dict(configs or {}), **placed)
    try:
        _results(cluster.admin.create_topics([topic], request_timeout=cluster.request_timeout_s))
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise CommandError(f"cannot create topic '{name}': {reason(error)}") from None
    return True


def topic_names(cluster: Cluster) -> list[str]:
    return sorted(cluster.metadata().topics)


def is_internal(name: str) -> bool:
    return name in ("__consumer_offsets", "__transaction_state", "__share_group_state", "__spark_commits")


def describe_topics(cluster: Cluster, names: Sequence[str], *, offsets: bool = False) -> list[TopicView]:
    """Returns the topics in the order of ``names``. Raises CommandError for a topic that does not exist."""
    known = cluster.metadata(*names).topics
    for name in names:
        if name not in known:
            raise unknown_topic(name, known)
    if not names:
        return []
    described = _results(
        cluster.admin.describe_topics(TopicCollection(list(names)), request_timeout=cluster.request_timeout_s)
    )
    configs = _configs_of(cluster, names)
    views = []
    for name in names:
        topic = described[name]
        partitions = [
            PartitionView(
                partition=info.id,
                leader=info.leader.id if info.leader is not None and info.leader.id >= 0 else None,
                replicas=[node.id for node in info.replicas],
                isr=[node.id for node in info.isr],
            )
            for info in sorted(topic.partitions, key=lambda info: int(info.id))
        ]
        if offsets:
            partitions = _with_offsets(cluster, name, partitions)
        views.append(
            TopicView(
                name,
                _topic_id(topic.topic_id),
                partitions,
                configs={entry.name: entry.value or "" for entry in configs[name].values() if not entry.is_default},
                min_insync_replicas=int(getattr(configs[name].get("min.insync.replicas"), "value", None) or 1),
            )
        )
    return views


def _topic_id(uuid: Any) -> str | None:
    """Returns the id as Kafka prints it; None for a cluster without topic ids, which sends none or zeros."""
    if uuid is None or str(uuid).rstrip("=") == _ZERO_UUID:
        return None
    return str(uuid).rstrip("=").replace("+", "-").replace("/", "_")


def _configs_of(cluster: Cluster, names: Sequence[str]) -> dict[str, dict[str, ConfigEntry]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    described = _results(cluster.admin.describe_configs(resources, request_timeout=cluster.request_timeout_s))
    return {resource.name: entries for resource, entries in described.items()}


def _with_offsets(cluster: Cluster, topic: str, partitions: list[PartitionView]) -> list[PartitionView]:
    # A partition without a leader would delay the response for all others.
    led = [TopicPartition(topic, view.partition) for view in partitions if view.leader is not None]
    earliest, latest = earliest_offsets(cluster, led), latest_offsets(cluster, led)
    return [
        replace(
            view,
            earliest=earliest.get(TopicPartition(topic, view.partition)),
            latest=latest.get(TopicPartition(topic, view.partition)),
        )
        for view in partitions
    ]


def add_partitions(
    cluster: Cluster, names: Iterable[str], total: int, assignment: list[list[int]] | None = None
) -> None:
    """Raises the number of partitions to ``total``. ``assignment`` holds the replicas of the new partitions only."""
    for name in names:
        placed = {"replica_assignment": assignment} if assignment else {}
        try:
            more = NewPartitions(name, total, **placed)
            _results(cluster.admin.create_partitions([more], request_timeout=cluster.request_timeout_s))
        except KafkaException as error:
            raise CommandError(f"cannot add partitions to topic '{name}': {reason(error)}") from None


def change_configs(cluster: Cluster, name: str, set_to: Mapping[str, str], unset: Iterable[str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in set_to.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    try:
        _results(cluster.admin.incremental_alter_configs([resource], request_timeout=cluster.request_timeout_s))
    except KafkaException as error:
        raise CommandError(f"cannot alter the configs of topic '{name}': {reason(error)}") from None


def delete_topics(cluster: Cluster, names: Sequence[str]) -> None:
    for name, future in cluster.admin.delete_topics(list(names), request_timeout=cluster.request_timeout_s).items():
        try:
            future.result()
        except KafkaException as error:
            raise CommandError(f"cannot delete topic '{name}': {reason(error)}") from None


def _results(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    """Waits for the futures of an admin request. Raises the first error."""
    return {key: future.result() for key, future in futures.items()}
