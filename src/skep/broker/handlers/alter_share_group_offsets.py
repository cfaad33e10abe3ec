"""AlterShareGroupOffsets (API 91), version 0 (KIP-932).

Behaviour
    Sets the start offsets of a share group without members, and drops what it knows of deliveries in these partitions.
    A group that does not exist is created. The start offset -1 means that share.auto.offset.reset decides again.

Versions
    0 is the only one.

Refusals
    For all: INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND for a group of another kind; NON_EMPTY_GROUP;
    POLICY_VIOLATION for more groups than skep.max.groups. Per partition: UNKNOWN_TOPIC_OR_PARTITION; INVALID_REQUEST
    for an offset below -1; the share coordinator cannot be reached.
"""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.permissions import TOPIC, allowed
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.share.share_state import UNINITIALIZED, SharePartitionKey
from skep.security.access import refusal
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AlterShareGroupOffsetsRequest


async def handle(services: Services, request: "Request[AlterShareGroupOffsetsRequest]") -> Body:
    group_id, topics = request.body.group_id, request.body.topics
    refused = {topic.topic_name for topic in topics if not allowed(request, TOPIC, topic.topic_name)}
    offsets = [
        (topic.topic_name, partition.partition_index, partition.start_offset)
        for topic in topics
        if topic.topic_name not in refused
        for partition in topic.partitions
        if partition.start_offset >= UNINITIALIZED
    ]
    image = services.catalog.image
    try:
        results = {} if refused and not offsets else await services.share_groups.alter_offsets(group_id, offsets)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": message_of(error), "responses": []}

    def response() -> Work[list[dict[str, Any]]]:
        entries = []
        for topic in topics:
            is_allowed = topic.topic_name not in refused
            known = image.topics.get(topic.topic_name) if is_allowed else None
            partitions = []
            for partition in topic.partitions:
                entry = {"partition_index": partition.partition_index}
                error: KafkaError | None
                if not is_allowed:
                    error = refusal(TOPIC)
                elif partition.start_offset < UNINITIALIZED:
                    error = KafkaError(
                        ErrorCode.invalid_request, f"the start offset {partition.start_offset} is below -1"
                    )
                else:
                    key = SharePartitionKey(group_id, known.topic_id, partition.partition_index) if known else None
                    error = results.get(key, _UNKNOWN) if key is not None else _UNKNOWN
                partitions.append(entry if error is None else {**entry, **_error(error)})
                yield
            entries.append(
                {
                    "topic_name": topic.topic_name,
                    "topic_id": known.topic_id if known is not None else None,
                    "partitions": partitions,
                }
            )
        return entries

    return {"responses": await services.slicer.finish(response())}


_UNKNOWN = KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")


def _error(error: KafkaError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": message_of(error)}


def refuse(request: "Request[AlterShareGroupOffsetsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "responses": []}
