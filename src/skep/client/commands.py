"""Commands of Skep's private API (SkepCommand): to the leader of a partition, to one broker, or to all of them.

Only Skep has it, and it is not advertised. Another broker closes the connection of whoever sends it, which looks like a
broker that has died. So after a lost connection the harmless command ``commands`` is sent on a new one: a broker that
answers to ApiVersions there, and closes again, does not have the API.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import ClientError, Silent, Unreachable, Unsupported
from skep.client.retry import RETRIABLE_FOR_PARTITION, Retry, call_with_retries, check_topic
from skep.wire.apis import API_VERSIONS, SKEP_COMMAND
from skep.wire.codec import Body

VERSION = 0
"""Given to each request, because the API is not among those that a broker names."""


def command_body(name: str, arguments: Mapping[str, Any]) -> Body:
    return {"command": name, "arguments": json.dumps(arguments).encode()}


def result_of(response: Any) -> Any:
    """Returns the result of a response. Raises KafkaError with the broker's message."""
    if response.error_code is not ErrorCode.none:
        raise KafkaError(response.error_code, response.error_message or response.error_code.name)
    try:
        return json.loads(response.result or b"null")
    except ValueError:
        raise ClientError("the result of a command is not JSON") from None


def command_to_node(cluster: ClusterClient, node: Node, name: str, arguments: Mapping[str, Any]) -> Any:
    """Returns the result of a command that is sent once. Raises KafkaError, Unreachable, and Unsupported for a broker
    that is not Skep's or is older."""
    try:
        return result_of(_ask(cluster, node, command_body(name, arguments)))
    except Unreachable:
        if _is_refused(cluster, node):
            raise Unsupported(
                f"the broker at {node.host}:{node.port} has no commands of Skep: it is another broker, or an older one"
            ) from None
        raise
    except KafkaError as error:
        if error.code is ErrorCode.unsupported_version:
            raise Unsupported(f"the broker at {node.host}:{node.port}: {error.detail}") from None
        raise


def command_to_all(cluster: ClusterClient, name: str, arguments: Mapping[str, Any]) -> dict[Node, Any]:
    """Returns the result of each broker."""
    return {node: command_to_node(cluster, node, name, arguments) for node in cluster.nodes()}


def command_to_leader(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    name: str,
    arguments: Mapping[str, Any],
    *,
    may_repeat: bool = True,
) -> Any:
    """Returns the result of the partition's leader; ``arguments`` get the topic and the partition.

    Retriable codes are retried, until TimedOut. So are lost connections, unless the command must not have its effect
    twice: then Unreachable is raised, and what became of it is not known.
    """
    retry = Retry(cluster, f"{name} of {topic}-{partition}")
    sent = {**arguments, "topic": topic, "partition": partition}
    while True:
        node = call_with_retries(
            cluster, f"the leader of {topic}-{partition}", lambda: _leader(cluster, topic, partition)
        )
        try:
            return command_to_node(cluster, node, name, sent)
        except Unreachable as error:
            if not may_repeat:
                raise
            reason = str(error)
        except KafkaError as error:
            # The leader that Metadata names may not know the topic yet.
            if error.code not in RETRIABLE_FOR_PARTITION:
                raise
            reason = str(error)
        cluster.switch_metadata_broker()
        retry.wait(reason)


def commands_to_leaders(
    cluster: ClusterClient, places: Collection[TopicPartition], name: str, arguments: Mapping[str, Any]
) -> dict[TopicPartition, Any]:
    """Returns the result of each partition's leader, for a command that may be repeated. Partitions without a leader
    are left out, and so are topics that do not exist."""
    found = {}
    for topic in sorted({place.topic for place in places}):
        try:
            leaders = cluster.leaders([topic])
        except KafkaError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                continue
            raise
        for place in sorted(place for place in places if place.topic == topic and place in leaders):
            sent = {**arguments, "topic": topic, "partition": place.partition}
            try:
                found[place] = command_to_node(cluster, leaders[place], name, sent)
            except (Unreachable, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in RETRIABLE_FOR_PARTITION:
                    raise
                found[place] = command_to_leader(cluster, topic, place.partition, name, arguments)
    return found


def _leader(cluster: ClusterClient, topic: str, partition: int) -> Node:
    """Raises KafkaError for a partition that does not exist, Unreachable while it has no leader."""
    metadata = cluster.metadata([topic])
    [found] = metadata.topics
    check_topic(found.error_code, topic)
    leader_ids = {row.partition_index: row.leader_id for row in found.partitions}
    if partition not in leader_ids:
        raise KafkaError(
            ErrorCode.unknown_topic_or_partition,
            f"topic '{topic}' has no partition {partition}; it has {len(leader_ids)}",
        )
    for broker in metadata.brokers:
        if broker.node_id == leader_ids[partition]:
            return Node(broker.node_id, broker.host, broker.port)
    raise Unreachable(f"partition {topic}-{partition} has no leader")


def _ask(cluster: ClusterClient, node: Node, body: Body) -> Any:
    connection = cluster.acquire_connection(node)
    try:
        connection.send(SKEP_COMMAND, body, version=VERSION)
        return connection.receive()
    finally:
        cluster.release_connection(node, connection)


def _is_refused(cluster: ClusterClient, node: Node) -> bool:
    """Whether the broker serves Kafka's protocol but closes a connection with a command."""
    try:
        connection = cluster.acquire_connection(node)
    except Unreachable:
        return False
    with connection:
        try:
            connection.version_of(API_VERSIONS)
        except (ClientError, KafkaError):
            return False
        try:
            connection.send(SKEP_COMMAND, command_body("commands", {}), version=VERSION)
            connection.receive()
        except Silent:
            return False
        except Unreachable:
            return True
    return False
