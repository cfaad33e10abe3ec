"""DeleteTopics (API 20), versions 1 to 6.

Behaviour
    Topics are deleted independently of each other. When the response is sent, no client sees the topic any more; its
    files are removed in the background, also after a crash.

Versions
    1 is the first served.
    2 changes nothing here (quotas).
    3: TOPIC_DELETION_DISABLED.
    4 is flexible.
    5: error messages, and THROTTLING_QUOTA_EXCEEDED (KIP-599). Older versions are throttled only.
    6: topics by id, and topic ids in the response (KIP-516).

Refusals, per topic, in order
    For all: TOPIC_DELETION_DISABLED without ``delete.topic.enable`` (before version 3: INVALID_REQUEST).
    INVALID_REQUEST: neither name nor id, or both; the same topic twice, also once by name and once by id.
    UNKNOWN_TOPIC_ID, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_TOPIC_OR_PARTITION.

Left out
    ``timeout`` is ignored: the request waits only for the metadata store.
"""

import asyncio
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.named_items import NAMES_AT_ONCE, ask_each
from skep.broker.permissions import CLUSTER, DELETE, DESCRIBE, TOPIC, check_item
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.mutation_quota import count_mutations
from skep.metadata.cluster_image import ClusterImage
from skep.security.operations import CLUSTER_NAME
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DeleteTopicsRequest

HAS_DELETION_DISABLED = 3
HAS_QUOTA_EXCEEDED = 5
HAS_TOPIC_ID = 6


class _Named(NamedTuple):
    """A topic as the request names it."""

    name: str | None
    topic_id: UUID | None


async def handle(services: Services, request: "Request[DeleteTopicsRequest]") -> Body:
    if not services.config.delete_topic_enable:
        disabled = request.version >= HAS_DELETION_DISABLED
        code = ErrorCode.topic_deletion_disabled if disabled else ErrorCode.invalid_request
        raise KafkaError(code, "delete.topic.enable is false")
    image = services.catalog.image
    named, twice = await services.slicer.finish(_named(request, image))
    responses = await ask_each(
        services.slicer,
        named,
        lambda one: _delete(services, request, one, _checked_name(request, image, one, twice)),
        lambda one, error: _response(one.name, one.topic_id, error.code, message_of(error)),
    )
    return {"responses": responses}


def _named(
    request: "Request[DeleteTopicsRequest]", image: ClusterImage
) -> Work[tuple[list[_Named], set[str | _Named]]]:
    """Returns the topics, and those that are named more than once, by name or by id."""
    named: list[_Named] = []
    seen: set[str | _Named] = set()
    twice: set[str | _Named] = set()
    for number, topic in enumerate(_topics(request)):
        one = _one(topic)
        named.append(one)
        name = _name_of(image, one)
        for known in (one,) if name is None else (one, name):
            (twice if known in seen else seen).add(known)
        if not number % NAMES_AT_ONCE:
            yield
    return named, twice


def _topics(request: "Request[DeleteTopicsRequest]") -> "Sequence[DeleteTopicsRequest.DeleteTopicState | str]":
    return request.body.topics if request.version >= HAS_TOPIC_ID else request.body.topic_names


def _one(topic: "DeleteTopicsRequest.DeleteTopicState | str") -> _Named:
    return _Named(topic, None) if isinstance(topic, str) else _Named(topic.name, topic.topic_id)


def _name_of(image: ClusterImage, one: _Named) -> str | None:
    if one.topic_id is None:
        return one.name
    topic = image.topics_by_id.get(one.topic_id)
    return None if topic is None else topic.name


def _checked_name(
    request: "Request[DeleteTopicsRequest]", image: ClusterImage, one: _Named, twice: Container[str | _Named]
) -> str:
    if one.name is None and one.topic_id is None:
        raise KafkaError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if one.name is not None and one.topic_id is not None:
        raise KafkaError(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    name = _name_of(image, one)
    if name is not None:
        _check_allowed(request, image, name)
    if one in twice or name in twice:
        raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name or id.")
    if name is None:
        raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    return name


def _check_allowed(request: "Request[DeleteTopicsRequest]", image: ClusterImage, name: str) -> None:
    """Raises KafkaError. Who may describe a topic learns that it does not exist."""
    access = request.access
    if not access.is_limited or access.really_allows(DELETE, CLUSTER, CLUSTER_NAME):
        access.asked(request, DELETE, CLUSTER, CLUSTER_NAME)
    elif name in image.topics or not access.really_allows(DESCRIBE, TOPIC, name):
        check_item(request, TOPIC, name)
    elif not access.allows(DELETE, TOPIC, name):
        # Not passed on: another broker may have created the topic since, and the catalog deletes by the store.
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")


async def _delete(
    services: Services, request: "Request[DeleteTopicsRequest]", one: _Named, name: str
) -> dict[str, Any]:
    await asyncio.sleep(0)  # a store in memory does not pause by itself
    try:
        if (topic := services.catalog.image.topics.get(name)) is not None:
            count_mutations(services, request, len(topic.partitions), strict_from=HAS_QUOTA_EXCEEDED)
        deleted = await services.catalog.delete_topic(name, one.topic_id)
    except RESPONSE_ERRORS as error:
        return _response(one.name, one.topic_id, code_of(error), message_of(error))
    return _response(deleted.name, deleted.topic_id, ErrorCode.none, None)


def _response(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}


def refuse(request: "Request[DeleteTopicsRequest]", code: ErrorCode) -> Body:
    def response(topic: "DeleteTopicsRequest.DeleteTopicState | str") -> dict[str, Any]:
        one = _one(topic)
        return _response(one.name, one.topic_id, code, None)

    return {"responses": LazyArray(_topics(request), response)}
