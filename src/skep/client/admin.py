"""Administration requests that programs need: creating a topic, its configs, committing offsets."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.client.cluster_client import GROUP, ClusterClient
from skep.client.retry import call_with_retries, check, check_topic
from skep.wire.apis import CREATE_TOPICS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, OFFSET_COMMIT

_TOPIC = 2
_DYNAMIC_TOPIC_CONFIG = 1
"""The config source of a value that is set for the topic itself, not by a default of the broker."""
_SET = 0
_NO_GENERATION = -1
"""The generation of a commit by a non-member, which is refused while the group has members."""
_COMMIT_BY_NAME = OFFSET_COMMIT._replace(newest=9)
"""Version 10 replaced the names of topics by their ids."""


def create_topic(cluster: ClusterClient, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> bool:
    """Returns whether the topic was created: False when it exists. The broker chooses the number of replicas."""
    body = {
        "topics": [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": -1,
                "assignments": [],
                "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
            }
        ],
        "timeout": timedelta(seconds=cluster.request_timeout_s),
        "validate_only": False,
    }

    def ask() -> Any:
        # Any Skep broker takes the request; Kafka wants its controller, which Metadata names.
        metadata = cluster.metadata(())
        nodes = {node.node_id: node for node in cluster.nodes()}
        controller = nodes.get(getattr(metadata, "controller_id", -1)) or next(iter(nodes.values()))
        return cluster.ask_node(controller, CREATE_TOPICS, body)

    response = call_with_retries(cluster, f"creating topic '{name}'", ask, lambda created: created.topics[0].error_code)
    [result] = response.topics
    if result.error_code is ErrorCode.topic_already_exists:
        return False
    check(result.error_code, f"topic '{name}'", getattr(result, "error_message", None))
    return True


def topic_configs(cluster: ClusterClient, topic: str, *, own_only: bool = False) -> dict[str, str | None]:
    """Returns every config of the topic with its effective value; with ``own_only``, those set for the topic itself."""
    body = {"resources": [{"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}]}

    def ask() -> Any:
        return cluster.ask_node(cluster.nodes()[0], DESCRIBE_CONFIGS, body)

    response = call_with_retries(cluster, f"configs of '{topic}'", ask, lambda found: found.results[0].error_code)
    [result] = response.results
    check_topic(result.error_code, topic, result.error_message)
    return {
        config.name: config.value
        for config in result.configs
        if not own_only or config.config_source == _DYNAMIC_TOPIC_CONFIG
    }


def set_topic_config(cluster: ClusterClient, topic: str, name: str, value: str) -> None:
    """Sets one config and leaves the others unchanged (KIP-339)."""
    config = {"name": name, "config_operation": _SET, "value": value}
    resource = {"resource_type": _TOPIC, "resource_name": topic, "configs": [config]}
    body = {"resources": [resource], "validate_only": False}

    def ask() -> Any:
        return cluster.ask_node(cluster.nodes()[0], INCREMENTAL_ALTER_CONFIGS, body)

    response = call_with_retries(
        cluster, f"setting {name} of '{topic}'", ask, lambda altered: altered.responses[0].error_code
    )
    [result] = response.responses
    check_topic(result.error_code, topic, result.error_message)


def commit_group_offsets(cluster: ClusterClient, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits offsets of a group. Raises KafkaError when the group has members: then only they may commit."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
        )
    if not topics:
        return
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": _NO_GENERATION,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }

    def code_of(response: Any) -> ErrorCode:
        codes = (result.error_code for topic in response.topics for result in topic.partitions)
        return next((code for code in codes if code is not ErrorCode.none), ErrorCode.none)

    def ask() -> Any:
        return cluster.ask_coordinator(GROUP, group, _COMMIT_BY_NAME, body, code_of)[1]

    response = call_with_retries(cluster, f"offsets of group '{group}'", ask)
    for topic in response.topics:
        for result in topic.partitions:
            check(result.error_code, f"group '{group}': topic '{topic.name}', partition {result.partition_index}")
