"""CreateTopics (API 19), versions 2 to 7.

Behaviour
    Each topic is made by itself: one that is refused does not keep the others from being made. It is there, and can be
    written to, when the answer is sent. -1 partitions or replicas stand for ``num.partitions`` and
    ``default.replication.factor``; they are what has to be given along with replicas chosen by hand.

    From version 5 on the answer has the partitions, the replicas and every option in force (KIP-525).
    ``validate_only`` checks all of it and makes nothing; there is no topic id then.

Refusals, per topic, in order
    INVALID_REQUEST: the same name twice; INVALID_TOPIC_EXCEPTION: a bad name, or a topic of the coordinators;
    TOPIC_ALREADY_EXISTS; INVALID_REQUEST: an option twice, or more than 1,000 configs; INVALID_CONFIG: an unknown
    option, a bad or no value; INVALID_REQUEST: numbers given although replicas are chosen; INVALID_REPLICATION_FACTOR,
    INVALID_PARTITIONS: numbers that mean nothing; POLICY_VIOLATION: more than ``skep.max.partitions``;
    INVALID_REPLICA_ASSIGNMENT; INVALID_REPLICATION_FACTOR: more than there are brokers.

Left out
    ``timeout`` is read and ignored: nothing but the metadata store is waited for.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Work
from skep.broker.config.config_entries import check_topic_overrides, checked_topic_value, texts_in, topic_entries
from skep.broker.named_items import named
from skep.broker.refusals import ANSWERABLE, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.topic_creation import INTERNAL_TOPICS, USE_DEFAULT, check_assignment, place, room_for
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

_UNKNOWN = -1


async def handle(services: Services, request: Request) -> Body:
    by_name, twice = await services.slicer.finish(named(request.body.topics))
    topics = []
    for name, topic in by_name.items():
        await asyncio.sleep(0)  # a request may name very many topics; others are served in between
        try:
            if name in twice:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            topics.append(await _create(services, topic, request.body.validate_only))
        except ANSWERABLE as error:
            topics.append(_refused(name, code_of(error), message_of(error)))
    return {"topics": topics}


async def _create(services: Services, topic: Any, validate_only: bool) -> dict[str, Any]:
    if topic.name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.invalid_topic_exception, f"{topic.name} is made by the broker, when it is first needed."
        )
    services.catalog.check_new_topic(topic.name)
    texts = texts_in(topic.configs, null_is=ErrorCode.invalid_config)
    overrides = {name: checked_topic_value(name, text) for name, text in texts.items()}
    check_topic_overrides(services, overrides)
    count, replication_factor = _numbers(services, topic)
    # The room first: placing the 2,147,483,647 partitions that somebody may ask for would fill the memory.
    with room_for(services, count):
        if topic.assignments:
            assignments = await services.slicer.finish(_chosen(services, topic.assignments))
        else:
            assignments = await services.slicer.finish(place(services, count, replication_factor))
        topic_id = None
        if not validate_only:
            topic_id = (await services.catalog.create_topic(topic.name, assignments, overrides)).topic_id
    return _made(services, topic.name, topic_id, assignments, overrides)


def _numbers(services: Services, topic: Any) -> tuple[int, int]:
    """How many partitions and replicas are wanted."""
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


def _chosen(services: Services, assignments: Sequence[Any]) -> Work[list[list[BrokerId]]]:
    """The replicas that the client chose, in the order of the partitions."""
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


def _made(
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
        # Null is for a topic that was made, but whose configs the client may not see.
        "configs": [],
    }


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"topics": LazyArray(request.body.topics, lambda topic: _refused(topic.name, code, None))}
