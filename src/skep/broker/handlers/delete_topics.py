"""DeleteTopics (API 20), versions 1 to 6.

Behaviour
    Each topic is deleted by itself, by name or, from version 6 on, by id. When the answer is sent the topic is gone for
    every client; its files are removed in the background, also after a crash.

Refusals, per topic, in order
    For all: TOPIC_DELETION_DISABLED without ``delete.topic.enable`` (before version 3, which does not know that code:
    INVALID_REQUEST). INVALID_REQUEST: neither name nor id, or both; the same topic twice, also once by name and once by
    id. UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION.

Left out
    ``timeout`` is read and ignored: nothing but the metadata store is waited for.
"""

from collections.abc import Container, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.refusals import ANSWERABLE, code_of, message_of, repeated
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.image import ClusterImage
from skep.wire.codec import Body

HAS_DELETION_DISABLED = 3
HAS_TOPIC_ID = 6


class _Named(NamedTuple):
    """A topic as the request names it."""

    name: str | None
    topic_id: UUID | None


async def handle(services: Services, request: Request) -> Body:
    if not services.config.delete_topic_enable:
        disabled = request.version >= HAS_DELETION_DISABLED
        code = ErrorCode.topic_deletion_disabled if disabled else ErrorCode.invalid_request
        raise KafkaError(code, "delete.topic.enable is false")
    image = services.catalog.image
    named = _named(request)
    twice = repeated(name for one in named if (name := _name_of(image, one)) is not None) | repeated(named)
    responses = []
    for one in dict.fromkeys(named):
        try:
            responses.append(await _delete(services, image, one, twice))
        except ANSWERABLE as error:
            responses.append(_response(one.name, one.topic_id, code_of(error), message_of(error)))
    return {"responses": responses}


def _named(request: Request) -> Sequence[_Named]:
    if request.version >= HAS_TOPIC_ID:
        return [_Named(topic.name, topic.topic_id) for topic in request.body.topics]
    return [_Named(name, None) for name in request.body.topic_names]


def _name_of(image: ClusterImage, one: _Named) -> str | None:
    if one.topic_id is None:
        return one.name
    topic = image.topics_by_id.get(one.topic_id)
    return None if topic is None else topic.name


async def _delete(
    services: Services, image: ClusterImage, one: _Named, twice: Container[str | _Named]
) -> dict[str, Any]:
    if one.name is None and one.topic_id is None:
        raise KafkaError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if one.name is not None and one.topic_id is not None:
        raise KafkaError(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    name = _name_of(image, one)
    if one in twice or name in twice:
        raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name or id.")
    if name is None:
        raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    deleted = await services.catalog.delete_topic(name, one.topic_id)
    return _response(deleted.name, deleted.topic_id, ErrorCode.none, None)


def _response(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"responses": [_response(one.name, one.topic_id, code, None) for one in _named(request)]}
