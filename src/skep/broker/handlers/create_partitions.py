"""CreatePartitions (API 37), versions 0 to 3.

Behaviour
    Topics grow to the given number of partitions, independently of each other. New partitions have as many replicas as
    the others, placed in turn, or chosen by the client with one list of brokers for each. ``validate_only`` checks the
    request and changes nothing.

Versions
    1 changes nothing here (quotas).
    2 is flexible.
    3: THROTTLING_QUOTA_EXCEEDED (KIP-599). Older versions are throttled only.

Refusals, per topic, in order
    INVALID_REQUEST: the same name twice; UNKNOWN_TOPIC_OR_PARTITION; INVALID_PARTITIONS: an internal topic, or not more
    partitions than the topic has; INVALID_REPLICA_ASSIGNMENT: not one list for each new partition; POLICY_VIOLATION:
    more than ``skep.max.partitions``; INVALID_REPLICA_ASSIGNMENT; INVALID_REPLICATION_FACTOR;
    THROTTLING_QUOTA_EXCEEDED.

Left out
    ``timeout`` is ignored: the request waits only for the metadata store.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Work
from skep.broker.named_items import named
from skep.broker.permissions import TOPIC, check_item
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.mutation_quota import count_mutations
from skep.broker.topics.topic_creation import INTERNAL_TOPICS, check_assignment, place, room_for
from skep.broker.worker.held_topics import HELD_TARGET, check_held_room
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import CreatePartitionsRequest

HAS_QUOTA_EXCEEDED = 3


async def handle(services: Services, request: "Request[CreatePartitionsRequest]") -> Body:
    by_name, twice = await services.slicer.finish(named(request.body.topics))
    results = []
    for name, topic in by_name.items():
        code, message = ErrorCode.none, None
        await asyncio.sleep(0)  # a request may name very many topics; others are served in between
        try:
            if name in twice:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            check_item(request, TOPIC, name)
            await _grow(services, request, topic)
        except RESPONSE_ERRORS as error:
            code, message = code_of(error), message_of(error)
        results.append({"name": name, "error_code": code, "error_message": message})
    return {"results": results}


async def _grow(
    services: Services, request: "Request[CreatePartitionsRequest]", wanted: "CreatePartitionsRequest.Topic"
) -> None:
    topic = services.catalog.image.topics.get(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{wanted.name}' does not exist.")
    if wanted.name in INTERNAL_TOPICS:
        # The partition of a group or transactional id depends on the number of partitions: it must never change.
        raise KafkaError(
            ErrorCode.invalid_partitions, f"{wanted.name} is an internal topic; its number of partitions cannot change."
        )
    current_count = len(topic.partitions)
    additional = wanted.count - current_count
    if additional == 0:
        raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {current_count} partition(s).")
    if additional < 0:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"The topic {wanted.name} currently has {current_count} partition(s); {wanted.count} would not be an "
            "increase.",
        )
    if wanted.assignments is not None and len(wanted.assignments) != additional:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified.",
        )
    replication_factor = len(topic.partitions[0].target)
    if topic.config.get(HELD_TARGET):
        check_held_room(services.catalog.image, services.config.held_max_partitions, additional)
    with room_for(services, additional):
        if wanted.assignments is not None:
            assignments = await services.slicer.finish(_chosen(services, wanted.assignments, replication_factor))
        else:
            placing = place(services, additional, replication_factor, growing=topic)
            assignments = await services.slicer.finish(placing)
        count_mutations(services, request, additional, strict_from=HAS_QUOTA_EXCEEDED)
        if not request.body.validate_only:
            await services.catalog.create_partitions(wanted.name, assignments, current_count=current_count)


def _chosen(
    services: Services, assignments: "Sequence[CreatePartitionsRequest.Assignment]", replication_factor: int
) -> Work[list[list[BrokerId]]]:
    """Returns the replicas that the client chose."""
    chosen = []
    for assignment in assignments:
        check_assignment(services, assignment.broker_ids, replication_factor)
        chosen.append(list(assignment.broker_ids))
        yield
    return chosen


def refuse(request: "Request[CreatePartitionsRequest]", code: ErrorCode) -> Body:
    return {
        "results": LazyArray(
            request.body.topics, lambda topic: {"name": topic.name, "error_code": code, "error_message": None}
        )
    }
