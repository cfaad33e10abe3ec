"""What the commands ask of a cluster as a whole, and the client library cannot: move replicas, elect, forget a broker.

Every broker of ours does these. Kafka's pass them on to their controller, which the metadata names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError
from skep.cli.skep_client import in_words
from skep.client.asking import until_answered
from skep.client.cluster_client import ClusterClient
from skep.client.errors import Unsupported
from skep.wire.apis import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
    Api,
)

PARTITIONS_AT_ONCE = 1_000
PREFERRED, UNCLEAN = 0, 1
THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_BROKER, _ALL_BROKERS = 4, ""
_SET, _DELETE = 0, 1


class Move(NamedTuple):
    """A partition whose replicas are being changed: all that there are now, those that come and those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Refusal(NamedTuple):
    where: TopicPartition
    code: ErrorCode
    words: str


def _ask(
    client: ClusterClient, what: str, api: Api, body: Mapping[str, Any], *, but_for: ErrorCode = ErrorCode.none
) -> Any:
    """Of the controller, or of any broker when none is known; asked again when that one went away.

    A refusal as a whole is a CommandError, ``but_for`` one that the caller knows what to do with.
    """

    def ask() -> Any:
        metadata = client.metadata(())
        nodes = {node.node_id: node for node in client.nodes()}
        node = nodes.get(getattr(metadata, "controller_id", -1)) or next(iter(nodes.values()))
        return client.ask_node(node, api, {**body, "timeout": timedelta(seconds=client.request_timeout_s)})

    answer = until_answered(client, what, ask)
    code = getattr(answer, "error_code", ErrorCode.none)
    if code not in (ErrorCode.none, but_for):
        raise CommandError(f"{what}: {getattr(answer, 'error_message', None) or in_words(code)}")
    return answer


def moves_under_way(client: ClusterClient) -> dict[TopicPartition, Move]:
    """The partitions that are being moved; none for a cluster that cannot move any."""
    try:
        answer = _ask(client, "listing what is being moved", LIST_PARTITION_REASSIGNMENTS, {"topics": None})
    except Unsupported:
        return {}
    return {
        TopicPartition(topic.name, row.partition_index): Move(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def move(client: ClusterClient, plan: Mapping[TopicPartition, Sequence[int] | None]) -> list[Refusal]:
    """Begins to move partitions to other brokers, or with None for replicas calls a move off; those refused."""
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
        answer = _ask(client, "moving partitions", ALTER_PARTITION_REASSIGNMENTS, body)
        refused += [
            _refusal(topic.name, row.partition_index, row)
            for topic in answer.responses
            for row in topic.partitions
            if row.error_code is not ErrorCode.none
        ]
    return refused


def elect(
    client: ClusterClient, kind: int, partitions: Iterable[TopicPartition], progress: Callable[[int], None]
) -> tuple[list[TopicPartition], list[Refusal]]:
    """The partitions that got a leader by it, and those refused; one that has the right leader already is neither.

    ``progress`` is told after each request how many more are decided.
    """
    elected, refused = [], []
    for part in _parts(sorted(partitions)):
        topics = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(part).items()]
        answer = _ask(client, "electing leaders", ELECT_LEADERS, {"election_type": kind, "topic_partitions": topics})
        for topic in answer.replica_election_results:
            for row in topic.partition_result:
                if row.error_code is ErrorCode.none:
                    elected.append(TopicPartition(topic.topic, row.partition_id))
                elif row.error_code is not ErrorCode.election_not_needed:
                    refused.append(_refusal(topic.topic, row.partition_id, row))
        progress(len(part))
    return elected, refused


def unregister(client: ClusterClient, broker: int) -> bool:
    """Lets the cluster forget a broker that is gone for good; False when it knew nothing of it."""
    unknown = ErrorCode.broker_id_not_registered
    what = f"unregistering broker {broker}"
    answer = _ask(client, what, UNREGISTER_BROKER, {"broker_id": broker}, but_for=unknown)
    return answer.error_code is not unknown


def set_throttle(client: ClusterClient, bytes_per_second: int | None) -> None:
    """How fast followers may copy, on every broker; None: as fast as they can."""
    operation = _DELETE if bytes_per_second is None else _SET
    value = None if bytes_per_second is None else str(bytes_per_second)
    configs = [{"name": name, "config_operation": operation, "value": value} for name in THROTTLES]
    resource = {"resource_type": _BROKER, "resource_name": _ALL_BROKERS, "configs": configs}
    answer = _ask(client, "the throttle", INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
    for row in answer.responses:
        if row.error_code is not ErrorCode.none:
            raise CommandError(f"the throttle is not set: {row.error_message or in_words(row.error_code)}")


def _refusal(topic: str, partition: int, row: Any) -> Refusal:
    return Refusal(TopicPartition(topic, partition), row.error_code, row.error_message or in_words(row.error_code))


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def _parts(partitions: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    for begin in range(0, len(partitions), PARTITIONS_AT_ONCE):
        yield partitions[begin : begin + PARTITIONS_AT_ONCE]
