"""DescribeTopicPartitions (API 75), version 0 (KIP-966).

Behaviour
    Returns the named topics, or all if none is named, sorted by name. The number of partitions is limited: by the
    request and by ``max.request.partition.size.limit``, but to no less than one. If there are more, ``next_cursor``
    says where; the client sends it back to continue there. A topic that is cut in two is in both responses.
    ``last_known_elr`` of a partition without a leader has the members of its last ISR, for which it waits.

Versions
    0 is the only one.

Refusals
    INVALID_REQUEST for all: a cursor with a negative partition, or at a topic that is not named. Per topic:
    TOPIC_AUTHORIZATION_FAILED, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.

Left out
    Eligible leader replicas: there are none besides the in-sync replicas.
"""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.authorized_operations import operations_on
from skep.broker.permissions import TOPIC, allowed, is_visible
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.topic_creation import INTERNAL_TOPICS, alive_brokers, describe_partitions
from skep.metadata.model import NO_LEADER, TopicRecord
from skep.metadata.topic_names import is_topic_name
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeTopicPartitionsRequest


def handle(services: Services, request: "Request[DescribeTopicPartitionsRequest]") -> Body:
    image, alive = services.catalog.image, alive_brokers(services)
    names, refused = _allowed(request, _names_from_cursor(image.topics, request.body))
    cursor = request.body.cursor
    left = max(1, min(services.config.max_request_partitions, request.body.response_partition_limit))
    topics: list[dict[str, Any]] = []
    next_cursor = None
    for name in names:
        if left == 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = image.topics.get(name)
        if topic is None:
            topics.append(_missing(request, name))
            continue
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        end = min(start + left, len(topic.partitions))
        numbered = islice(enumerate(topic.partitions), start, end)
        topics.append(_found(request, topic, start, describe_partitions(numbered, alive)))
        left -= max(0, end - start)
        if end < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": end}
            break
    return {"topics": [*topics, *refused], "next_cursor": next_cursor}


def _allowed(
    request: "Request[DescribeTopicPartitionsRequest]", names: list[str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the names that the client may know, and the entries of others that it has named."""
    if not request.access.is_limited:
        return names, []
    if not request.body.topics:
        return [name for name in names if is_visible(request, TOPIC, name)], []
    kept = [name for name in names if allowed(request, TOPIC, name)]
    known = set(kept)
    refused = [name for name in names if name not in known]
    return kept, [{"error_code": ErrorCode.topic_authorization_failed, "name": name} for name in refused]


def _names_from_cursor(known: Iterable[str], body: "DescribeTopicPartitionsRequest") -> list[str]:
    cursor = body.cursor
    names = {topic.name for topic in body.topics} or set(known)
    if cursor is not None:
        if body.topics and cursor.topic_name not in names:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"the cursor's topic {cursor.topic_name!r} is not among the topics of the request",
            )
        if cursor.partition_index < 0:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"the cursor's partition index is {cursor.partition_index}; it must not be negative",
            )
        names = {name for name in names if name >= cursor.topic_name}
    return sorted(names)


def _found(
    request: "Request[DescribeTopicPartitionsRequest]",
    topic: TopicRecord,
    start: int,
    partitions: list[dict[str, Any]],
) -> dict[str, Any]:
    for index, partition in enumerate(partitions, start):
        record = topic.partitions[index]
        partition["eligible_leader_replicas"] = ()
        partition["last_known_elr"] = record.awaited if record.leader == NO_LEADER else ()
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": operations_on(request.access, TOPIC, topic.name),
    }


def _missing(request: "Request[DescribeTopicPartitionsRequest]", name: str) -> dict[str, Any]:
    code = ErrorCode.unknown_topic_or_partition if is_topic_name(name) else ErrorCode.invalid_topic_exception
    return {
        "error_code": code,
        "name": name,
        "is_internal": name in INTERNAL_TOPICS,
        "topic_authorized_operations": operations_on(request.access, TOPIC, name),
    }


def refuse(request: "Request[DescribeTopicPartitionsRequest]", code: ErrorCode) -> Body:
    return {"topics": LazyArray(request.body.topics, lambda topic: {"error_code": code, "name": topic.name})}
