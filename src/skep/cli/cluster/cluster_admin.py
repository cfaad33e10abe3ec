"""Admin requests that confluent-kafka does not have: move replicas, elect leaders, unregister a broker, throttle.

They are sent to the controller that the metadata names. Any Skep broker handles them, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.failures import CommandError
from skep.cli.skep_client import error_text
from skep.client.cluster_client import ClusterClient
from skep.client.errors import Unsupported
from skep.client.retry import call_with_retries
from skep.wire.apis import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
    Api,
)

PARTITIONS_PER_REQUEST = 1_000
SHOWN_REFUSALS = 20
PREFERRED, UNCLEAN = 0, 1
THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_BROKER, _ALL_BROKERS = 4, ""
_SET, _DELETE = 0, 1


class Move(NamedTuple):
    """A reassignment in progress: the current replicas, those being added and those being removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Refusal(NamedTuple):
    """A partition that the controller refused to change, and why."""

    where: TopicPartition
    code: ErrorCode
    message: str


def _request(
    client: ClusterClient, what: str, api: Api, body: Mapping[str, Any], *, allowed: ErrorCode = ErrorCode.none
) -> Any:
    """Sends a request to the controller, or to any broker if there is none; retries if that broker is unreachable.

    Raises CommandError for an error code of the whole request, except for ``allowed``, which the caller handles.
    """

    def send() -> Any:
        metadata = client.metadata(())
        nodes = {node.node_id: node for node in client.nodes()}
        node = nodes.get(getattr(metadata, "controller_id", -1)) or next(iter(nodes.values()))
        return client.ask_node(node, api, {**body, "timeout": timedelta(seconds=client.request_timeout_s)})

    response = call_with_retries(client, what, send)
    code = getattr(response, "error_code", ErrorCode.none)
    if code not in (ErrorCode.none, allowed):
        raise CommandError(f"{what}: {getattr(response, 'error_message', None) or error_text(code)}")
    return response


def current_moves(client: ClusterClient) -> dict[TopicPartition, Move]:
    """Returns the reassignments in progress; none for a cluster without ListPartitionReassignments."""
    try:
        response = _request(client, "listing reassignments", LIST_PARTITION_REASSIGNMENTS, {"topics": None})
    except Unsupported:
        return {}
    return {
        TopicPartition(topic.name, row.partition_index): Move(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in response.topics
        for row in topic.partitions
    }


def move(client: ClusterClient, plan: Mapping[TopicPartition, Sequence[int] | None]) -> list[Refusal]:
    """Starts to move partitions to other replicas, or cancels a move if the replicas are None. Returns the refusals."""
    refused = []
    for part in _parts(sorted(plan)):
        topics = [
            {
                "name": topic,
                "partitions": [{"partition_index": n, "replicas": plan[TopicPartition(topic, n)]} for n in numbers],
            }
            for topic, numbers in by_topic(part).items()
        ]
        body = {"topics": topics, "allow_replication_factor_change": True}
        response = _request(client, "moving partitions", ALTER_PARTITION_REASSIGNMENTS, body)
        refused += [
            _refusal(topic.name, row.partition_index, row)
            for topic in response.responses
            for row in topic.partitions
            if row.error_code is not ErrorCode.none
        ]
    return refused


def elect(
    client: ClusterClient, kind: int, partitions: Iterable[TopicPartition], progress: Callable[[int], None]
) -> tuple[list[TopicPartition], list[Refusal]]:
    """Returns the partitions with a new leader, and the refusals. One that already has the right leader is in neither.

    ``progress`` is called after each request with its number of partitions.
    """
    elected, refused = [], []
    for part in _parts(sorted(partitions)):
        topics = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(part).items()]
        body = {"election_type": kind, "topic_partitions": topics}
        response = _request(client, "electing leaders", ELECT_LEADERS, body)
        for topic in response.replica_election_results:
            for row in topic.partition_result:
                if row.error_code is ErrorCode.none:
                    elected.append(TopicPartition(topic.topic, row.partition_id))
                elif row.error_code is not ErrorCode.election_not_needed:
                    refused.append(_refusal(topic.topic, row.partition_id, row))
        progress(len(part))
    return elected, refused


def unregister(client: ClusterClient, broker: int) -> bool:
    """Unregisters a broker. Returns False if it is not registered."""
    unknown = ErrorCode.broker_id_not_registered
    what = f"unregistering broker {broker}"
    response = _request(client, what, UNREGISTER_BROKER, {"broker_id": broker}, allowed=unknown)
    return response.error_code is not unknown


def set_throttle(client: ClusterClient, bytes_per_second: int | None) -> None:
    """Limits the rate of replication on every broker; None removes the limit."""
    operation = _DELETE if bytes_per_second is None else _SET
    value = None if bytes_per_second is None else str(bytes_per_second)
    configs = [{"name": name, "config_operation": operation, "value": value} for name in THROTTLES]
    resource = {"resource_type": _BROKER, "resource_name": _ALL_BROKERS, "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    response = _request(client, "setting the throttle", INCREMENTAL_ALTER_CONFIGS, body)
    for row in response.responses:
        if row.error_code is not ErrorCode.none:
            raise CommandError(f"cannot set the throttle: {row.error_message or error_text(row.error_code)}")


def raise_refused(refused: Sequence[Refusal], requested: int) -> None:
    """Raises CommandError with the first refusal, if there are any. The others are printed before it."""
    for refusal in refused[1:SHOWN_REFUSALS]:
        output.note(f"{refusal.where}: {refusal.message}")
    if refused:
        first = refused[0]
        raise CommandError(
            f"{len(refused)} of {output.count(requested, 'partition')} refused: {first.where}: {first.message}"
        )


def _refusal(topic: str, partition: int, row: Any) -> Refusal:
    return Refusal(TopicPartition(topic, partition), row.error_code, row.error_message or error_text(row.error_code))


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def _parts(partitions: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    for begin in range(0, len(partitions), PARTITIONS_PER_REQUEST):
        yield partitions[begin : begin + PARTITIONS_PER_REQUEST]
