"""CreateTopics (API 19), versions 2 to 7.

Behaviour
    Topics are created independently of each other. When the response is sent, a topic exists and can be written to. -1
    partitions or replicas mean ``num.partitions`` and ``default.replication.factor``; with a manual assignment both
    must be -1. ``validate_only`` checks the request and creates nothing; the response then has no topic id.

Versions
    2 is the first served.
    3 changes nothing here (quotas).
    4: -1 for the defaults (KIP-464), which older versions may use too.
    5 is flexible; the response has the number of partitions and replicas and every option in force (KIP-525).
    6: THROTTLING_QUOTA_EXCEEDED (KIP-599). Older versions are throttled only.
    7: topic id in the response (KIP-516).

Refusals, per topic, in order
    INVALID_REQUEST: the same name twice; INVALID_TOPIC_EXCEPTION: an invalid name, or an internal topic;
    TOPIC_ALREADY_EXISTS; INVALID_REQUEST: an option twice, or more than 1,000 configs; INVALID_CONFIG: an unknown
    option, an invalid value or none; INVALID_REQUEST: numbers besides a manual assignment;
    INVALID_REPLICATION_FACTOR, INVALID_PARTITIONS: numbers below 1 other than -1; POLICY_VIOLATION: more than
    ``skep.max.partitions``, or ``skep.held.max.partitions`` of held topics; INVALID_REPLICA_ASSIGNMENT;
    INVALID_REPLICATION_FACTOR: more than there are brokers; THROTTLING_QUOTA_EXCEEDED.

Left out
    ``timeout`` is ignored: the request waits only for the metadata store.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Work
from skep.broker.config.config_entries import check_topic_overrides, checked_topic_value, texts_in, topic_entries
from skep.broker.named_items import named
from skep.broker.permissions import DESCRIBE_CONFIGS, TOPIC, check_held_target, may_create_topic
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.mutation_quota import count_mutations
from skep.broker.topics.topic_creation import INTERNAL_TOPICS, USE_DEFAULT, check_assignment, place, room_for
from skep.broker.worker.held_topics import HELD_TARGET, check_held_room, with_implied
from skep.security.access import refusal
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import CreateTopicsRequest

HAS_QUOTA_EXCEEDED = 6
_UNKNOWN = -1
_HIDDEN = {
    "topic_config_error_code": ErrorCode.topic_authorization_failed.value,
    "num_partitions": _UNKNOWN,
    "replication_factor": _UNKNOWN,
    "configs": None,
}
"""What the creator of a topic is told of it who may not see configs."""


async def handle(services: Services, request: "Request[CreateTopicsRequest]") -> Body:
    by_name, twice = await services.slicer.finish(named(request.body.topics))
    topics = []
    for name, topic in by_name.items():
        await asyncio.sleep(0)  # a request may name very many topics; others are served in between
        try:
            if name in twice:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            if not may_create_topic(request, name):
                raise refusal(TOPIC)
            shows_config = request.access.allows(DESCRIBE_CONFIGS, TOPIC, name)
            created = await _create(services, request, topic)
            topics.append(created if shows_config else {**created, **_HIDDEN})
        except RESPONSE_ERRORS as error:
            topics.append(_refused(name, code_of(error), message_of(error)))
    return {"topics": topics}


async def _create(
    services: Services, request: "Request[CreateTopicsRequest]", topic: "CreateTopicsRequest.CreatableTopic"
) -> dict[str, Any]:
    if topic.name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"{topic.name} is an internal topic; the broker creates it when it is first needed.",
        )
    services.catalog.check_new_topic(topic.name)
    texts = texts_in(topic.configs, null_is=ErrorCode.invalid_config)
    overrides = with_implied({name: checked_topic_value(name, text) for name, text in texts.items()})
    check_held_target(request, overrides.get(HELD_TARGET))
    check_topic_overrides(services, topic.name, overrides)
    count, replication_factor = _numbers(services, topic)
    # The limit first: placing the 2,147,483,647 partitions that a request may ask for would fill the memory.
    if overrides.get(HELD_TARGET):
        check_held_room(services.catalog.image, services.config.held_max_partitions, count)
    with room_for(services, count):
        if topic.assignments:
            assignments = await services.slicer.finish(_chosen(services, topic.assignments))
        else:
            assignments = await services.slicer.finish(place(services, count, replication_factor))
        count_mutations(services, request, count, strict_from=HAS_QUOTA_EXCEEDED)
        topic_id = None
        if not request.body.validate_only:
            topic_id = (await services.catalog.create_topic(topic.name, assignments, overrides)).topic_id
    return _created(services, topic.name, topic_id, assignments, overrides)


def _numbers(services: Services, topic: "CreateTopicsRequest.CreatableTopic") -> tuple[int, int]:
    """Returns the number of partitions and replicas."""
    if topic.assignments:
        for given, what in ((topic.replication_factor, "replication factor"), (topic.num_partitions, "numPartitions")):
            if given != USE_DEFAULT:
                raise KafkaError(
                    ErrorCode.invalid_request,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        return len(topic.assignments), USE_DEFAULT
    if topic.replication_factor < USE_DEFAULT or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < USE_DEFAULT or topic.num_partitions == 0:
        raise KafkaError(ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value.")
    config = services.config
    return (
        config.num_partitions if topic.num_partitions == USE_DEFAULT else topic.num_partitions,
        config.default_replication_factor if topic.replication_factor == USE_DEFAULT else topic.replication_factor,
    )


def _chosen(
    services: Services, assignments: "Sequence[CreateTopicsRequest.CreatableReplicaAssignment]"
) -> Work[list[list[BrokerId]]]:
    """Returns the replicas that the client chose, in the order of the partitions."""
    chosen: dict[int, list[BrokerId]] = {}
    for assignment in assignments:
        index = assignment.partition_index
        if index in chosen:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        before = next(iter(chosen.values()), None)
        check_assignment(services, assignment.broker_ids, None if before is None else len(before))
        chosen[index] = list(assignment.broker_ids)
        yield
    if any(index not in chosen for index in range(len(chosen))):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment, "partitions should be a consecutive 0-based integer sequence"
        )
    return [chosen[index] for index in range(len(chosen))]


def _created(
    services: Services,
    name: str,
    topic_id: UUID | None,
    assignments: Sequence[Sequence[BrokerId]],
    overrides: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "topic_config_error_code": ErrorCode.none.value,
        "num_partitions": len(assignments),
        "replication_factor": len(assignments[0]),
        "configs": [
            {
                "name": entry.option.name,
                "value": entry.value,
                "read_only": not entry.option.dynamic,
                "config_source": entry.source.value,
                "is_sensitive": False,
            }
            for entry in topic_entries(services, overrides)
        ],
    }


def _refused(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": code,
        "error_message": message,
        "num_partitions": _UNKNOWN,
        "replication_factor": _UNKNOWN,
        # Null means that the topic was created but the client may not see its configs.
        "configs": [],
    }


def refuse(request: "Request[CreateTopicsRequest]", code: ErrorCode) -> Body:
    return {"topics": LazyArray(request.body.topics, lambda topic: _refused(topic.name, code, None))}
