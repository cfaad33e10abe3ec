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
    TOPIC_AUTHORIZATION_FAILED; UNKNOWN_TOPIC_OR_PARTITION; GROUP_SUBSCRIBED_TO_TOPIC.
"""

from collections.abc import Awaitable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Work
from skep.broker.permissions import TOPIC, allowed
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
    refused = await finish(_refusals(request, known))
    places = await finish(_places(body.topics, refused))
    codes: Codes = []
    # At least once, also without partitions: the group may not exist.
    for start in range(0, max(1, len(places)), offset_operations.OFFSETS_AT_ONCE):
        some = places[start : start + offset_operations.OFFSETS_AT_ONCE]
        deleted = await finish(_delete(services, body.group_id, some))
        codes += await deleted if isinstance(deleted, Awaitable) else deleted
    return {"topics": await finish(_response(body.topics, refused, codes))}


def _refusals(request: "Request[OffsetDeleteRequest]", known: Container[str]) -> Work[dict[str, ErrorCode]]:
    """Returns the codes of topics whose offsets cannot be deleted."""
    refused = {}
    for topic in request.body.topics:
        if not allowed(request, TOPIC, topic.name):
            refused[topic.name] = ErrorCode.topic_authorization_failed
        elif topic.name not in known:
            refused[topic.name] = ErrorCode.unknown_topic_or_partition
        yield
    return refused


def _places(topics: "Sequence[OffsetDeleteRequest.Topic]", refused: Container[str]) -> Work[list[Place]]:
    places = []
    for topic in topics:
        if topic.name not in refused:
            for partition in topic.partitions:
                places.append((topic.name, partition.partition_index))
                yield
    return places


def _delete(services: Services, group_id: str, places: list[Place]) -> Work[Any]:
    yield
    return services.groups.delete_offsets(group_id, places)


def _response(
    topics: "Sequence[OffsetDeleteRequest.Topic]", refused: Mapping[str, ErrorCode], codes: Codes
) -> Work[list[dict[str, Any]]]:
    left = iter(codes)
    response = []
    for topic in topics:
        refusal, partitions = refused.get(topic.name), []
        for partition in topic.partitions:
            code = next(left) if refusal is None else refusal
            partitions.append({"partition_index": partition.partition_index, "error_code": code})
            yield
        response.append({"name": topic.name, "partitions": partitions})
    return response


def refuse(request: "Request[OffsetDeleteRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "topics": []}
