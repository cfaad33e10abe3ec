"""SyncGroup (API 14), versions 0 to 5.

Behaviour
    The leader sends the assignment of each member. It is written to ``__consumer_offsets``, and then every member gets
    its part; members other than the leader wait for it. In a stable group a member gets the assignment that it has.

    An assignment that cannot be written is refused with UNKNOWN_SERVER_ERROR if it exceeds max.message.bytes of
    ``__consumer_offsets``, otherwise with the reason; the group rebalances.

Versions
    1: ``throttle_time_ms``.
    2 changes nothing here (quotas).
    3: ``group_instance_id`` (KIP-345).
    4 is flexible.
    5: the protocol type and name, which are checked if given, and are in the response (KIP-559).

Refusals, in order
    INVALID_GROUP_ID; no coordinator here; UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (3+); ILLEGAL_GENERATION;
    INCONSISTENT_GROUP_PROTOCOL (5+); REBALANCE_IN_PROGRESS.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.classic.classic_sync import SyncRequest
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import SyncGroupRequest


def handle(services: Services, request: "Request[SyncGroupRequest]") -> Awaitable[Body]:
    body = request.body
    return services.groups.sync_group(
        SyncRequest(
            group_id=body.group_id,
            generation_id=body.generation_id,
            member_id=body.member_id,
            group_instance_id=getattr(body, "group_instance_id", None),
            protocol_type=getattr(body, "protocol_type", None),
            protocol_name=getattr(body, "protocol_name", None),
            assignments={each.member_id: each.assignment for each in body.assignments},
        )
    )


def refuse(request: "Request[SyncGroupRequest]", code: ErrorCode) -> Body:
    return {"error_code": code}
