"""ConsumerGroupHeartbeat (API 68), versions 0 and 1 (KIP-848).

Behaviour
    A member joins a consumer group (epoch 0), stays in it, gets the partitions to consume and those to revoke, and
    leaves it (epoch -1; -2 for a static member that returns). A null field of the request is unchanged since the last
    heartbeat, and so is a null assignment in the response.

    The first heartbeat with epoch 0 upgrades a classic group to a consumer group. The upgrade of a large group takes a
    while; it is refused with COORDINATOR_LOAD_IN_PROGRESS if the group changes meanwhile, or if another upgrade of it
    is under way.

Versions
    1: the member generates its own id (KIP-1082), and may subscribe to a regular expression in RE2's syntax, which has
    to match a whole topic name (KIP-848).

Refusals, in order
    INVALID_GROUP_ID for a group id that is too long; no coordinator here; INVALID_REQUEST for fields that are missing
    or contradict each other; UNSUPPORTED_ASSIGNOR; GROUP_ID_NOT_FOUND; GROUP_MAX_SIZE_REACHED; UNKNOWN_MEMBER_ID;
    FENCED_MEMBER_EPOCH; UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID; GROUP_MAX_SIZE_REACHED when the metadata of the
    members, mostly topic names, would exceed skep.max.group.metadata.bytes; INVALID_REGULAR_EXPRESSION.

Left out
    ``rack_id`` is stored and returned, but no assignor uses it, as in Kafka.
"""

import datetime
import functools
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_TOPIC_ID
from skep.broker.permissions import DESCRIBE, TOPIC, check_item
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.membership.consumer_heartbeat import HeartbeatRequest
from skep.coordination.groups.topic_patterns.topic_matches import TopicFilter
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ConsumerGroupHeartbeatRequest

_MILLISECOND = datetime.timedelta(milliseconds=1)


def handle(services: Services, request: "Request[ConsumerGroupHeartbeatRequest]") -> Body | Awaitable[Body]:
    try:
        if request.access.is_limited:
            for name in request.body.subscribed_topic_names or ():
                check_item(request, TOPIC, name)
        response = services.groups.consumer_group_heartbeat(_heartbeat(services, request))
    except KafkaError as error:
        return _refused(error)
    return _response_or_refusal(response) if isinstance(response, Awaitable) else response


async def _response_or_refusal(response: Awaitable[Body]) -> Body:
    try:
        return await response
    except KafkaError as error:
        return _refused(error)


def _heartbeat(services: Services, request: "Request[ConsumerGroupHeartbeatRequest]") -> HeartbeatRequest:
    body, topic_filter = request.body, None
    if request.access.is_limited:
        # An expression matches what its member may know of. The filter outlives the request, but not the access.
        describes = functools.partial(request.access.allows, DESCRIBE, TOPIC)
        topic_filter = TopicFilter(request.access.version, describes)
    names, owned = body.subscribed_topic_names, body.topic_partitions
    return HeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout // _MILLISECOND,
        topic_names=None if names is None else frozenset(names),
        topic_regex=getattr(body, "subscribed_topic_regex", None),
        topic_filter=topic_filter,
        server_assignor=body.server_assignor,
        owned=None
        if owned is None
        else {topic.topic_id or NO_TOPIC_ID: frozenset(topic.partitions) for topic in owned if topic.partitions},
        version=request.version,
    )


def _refused(error: KafkaError) -> Body:
    return {"error_code": error.code, "error_message": message_of(error)}


def refuse(request: "Request[ConsumerGroupHeartbeatRequest]", code: ErrorCode) -> Body:
    return {"error_code": code}
