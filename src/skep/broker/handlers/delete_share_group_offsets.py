"""DeleteShareGroupOffsets (API 92), version 0 (KIP-932).

Behaviour
    Deletes the state of topics in a share group without members: where it starts, and what it knows of deliveries. If
    the group reads the topic again, share.auto.offset.reset decides where it starts.

Versions
    0 is the only one.

Refusals
    For all: INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND, also for a group of another kind;
    NON_EMPTY_GROUP. Per topic: UNKNOWN_TOPIC_OR_PARTITION, also for a topic that the group has no state of; the share
    coordinator cannot be reached.
"""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.permissions import TOPIC, allowed
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.security.access import refusal
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DeleteShareGroupOffsetsRequest


async def handle(services: Services, request: "Request[DeleteShareGroupOffsetsRequest]") -> Body:
    image = services.catalog.image
    names = [topic.topic_name for topic in request.body.topics]
    refused = {name for name in names if not allowed(request, TOPIC, name)}
    ids = {name: image.topics[name].topic_id for name in names if name in image.topics and name not in refused}
    try:
        results = {}
        if ids or not refused:
            results = await services.share_groups.delete_offsets(request.body.group_id, frozenset(ids.values()))
    except KafkaError as error:
        return {"error_code": error.code, "error_message": message_of(error), "responses": []}

    def entry(name: str) -> dict[str, Any]:
        topic_id = ids.get(name)
        result: dict[str, Any] = {"topic_name": name, "topic_id": topic_id}
        if name in refused:
            message = message_of(refusal(TOPIC))
            return {**result, "error_code": ErrorCode.topic_authorization_failed, "error_message": message}
        if topic_id is None:
            message = "This server does not host this topic-partition."
            return {**result, "error_code": ErrorCode.unknown_topic_or_partition, "error_message": message}
        if topic_id not in results:
            message = "There is no offset information to delete."
            return {**result, "error_code": ErrorCode.unknown_topic_or_partition, "error_message": message}
        error = results[topic_id]
        return result if error is None else {**result, "error_code": error.code, "error_message": message_of(error)}

    return {"responses": [entry(name) for name in names]}


def refuse(request: "Request[DeleteShareGroupOffsetsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "responses": []}
