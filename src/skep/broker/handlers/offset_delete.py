"""OffsetDelete (API 47), version 0.

Behaviour
    Deletes committed offsets of a group. A partition without an offset is no error. Very many offsets are deleted in
    several steps; when a step is refused the whole request is, and the offsets of earlier steps are deleted.

Versions
    There is only version 0 (KIP-496).

Refusals of the request, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP when the group has members whose
    subscriptions cannot be read.
Refusals per partition
    UNKNOWN_TOPIC_OR_PARTITION; GROUP_SUBSCRIBED_TO_TOPIC.
"""

from collections.abc import Awaitable, Container, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.committed_offsets import Place
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Codes
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import OffsetDeleteRequest


async def handle(services: Services, request: "Request[OffsetDeleteRequest]") -> Body:
    body, finish = request.body, services.slicer.finish
    services.groups.check_id(body.group_id, may_be_empty=True)
    known = services.catalog.image.topics
    places = await finish(_places(body.topics, known))
    codes: Codes = []
    # At least once, also without partitions: the group may not exist.
    for start in range(0, max(1, len(places)), offset_operations.OFFSETS_AT_ONCE):
        some = places[start : start + offset_operations.OFFSETS_AT_ONCE]
        deleted = await finish(_delete(services, body.group_id, some))
        codes += await deleted if isinstance(deleted, Awaitable) else deleted
    return {"topics": await finish(_response(body.topics, known, codes))}


def _places(topics: "Sequence[OffsetDeleteRequest.Topic]", known: Container[str]) -> Work[list[Place]]:
    places = []
    for topic in topics:
        if topic.name in known:
            for partition in topic.partitions:
                places.append((topic.name, partition.partition_index))
                yield
    return places


def _delete(services: Services, group_id: str, places: list[Place]) -> Work[Any]:
    yield
    return services.groups.delete_offsets(group_id, places)


def _response(
    topics: "Sequence[OffsetDeleteRequest.Topic]", known: Container[str], codes: Codes
) -> Work[list[dict[str, Any]]]:
    left = iter(codes)
    response = []
    for topic in topics:
        is_known, partitions = topic.name in known, []
        for partition in topic.partitions:
            code = next(left) if is_known else ErrorCode.unknown_topic_or_partition
            partitions.append({"partition_index": partition.partition_index, "error_code": code})
            yield
        response.append({"name": topic.name, "partitions": partitions})
    return response


def refuse(request: "Request[OffsetDeleteRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "topics": []}
