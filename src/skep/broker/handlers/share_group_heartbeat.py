"""ShareGroupHeartbeat (API 76), version 1 (KIP-932).

Behaviour
    A member joins a share group (epoch 0), stays in it, gets the partitions to read, and leaves it (epoch -1). It makes
    its own member id. A null field of the request is unchanged since the last heartbeat, and so is a null assignment in
    the response. A partition may be assigned to several members.

    Only partitions whose state is initialized are assigned. If a heartbeat needs more of them, its response waits up to
    a second for their state, so the first response mostly has the assignment. Kafka's has it one heartbeat later.

Versions
    1 is the only one served; 0 was that of an early access.

Refusals, in order
    INVALID_GROUP_ID for a group id that is too long; no coordinator here; INVALID_REQUEST for fields that are missing
    or empty; GROUP_ID_NOT_FOUND, also for a group of another kind; GROUP_MAX_SIZE_REACHED (group.share.max.size);
    UNKNOWN_MEMBER_ID; FENCED_MEMBER_EPOCH; GROUP_MAX_SIZE_REACHED when the metadata of the members, mostly topic names,
    would exceed skep.max.group.metadata.bytes; POLICY_VIOLATION for more groups than skep.max.groups.

Left out
    ``rack_id`` is stored and returned, but the assignor does not use it, as in Kafka.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.permissions import TOPIC, check_item
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.share.share_membership import ShareHeartbeatRequest
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ShareGroupHeartbeatRequest


async def handle(services: Services, request: "Request[ShareGroupHeartbeatRequest]") -> Body:
    body = request.body
    names = body.subscribed_topic_names
    heartbeat = ShareHeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",
        rack_id=body.rack_id,
        topic_names=None if names is None else frozenset(names),
    )
    try:
        for name in names or ():
            check_item(request, TOPIC, name)
        return await services.share_groups.heartbeat(heartbeat)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": message_of(error)}


def refuse(request: "Request[ShareGroupHeartbeatRequest]", code: ErrorCode) -> Body:
    return {"error_code": code}
