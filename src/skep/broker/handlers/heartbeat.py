"""Heartbeat (API 12), versions 0 to 4.

Behaviour
    Restarts the member's session. REBALANCE_IN_PROGRESS tells the member to join again. While the coordinator loads,
    the response has no error, as in Kafka: a full session starts when the loading ends.

Versions
    1: ``throttle_time_ms``.
    2 changes nothing here (quotas).
    3: ``group_instance_id`` (KIP-345).
    4 is flexible.

Refusals, in order
    INVALID_GROUP_ID; no coordinator here; UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (3+); ILLEGAL_GENERATION.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import HeartbeatRequest


def handle(services: Services, request: "Request[HeartbeatRequest]") -> Body | Awaitable[Body]:
    body = request.body
    instance_id = getattr(body, "group_instance_id", None)
    return services.groups.heartbeat(body.group_id, body.member_id, instance_id, body.generation_id)


def refuse(request: "Request[HeartbeatRequest]", code: ErrorCode) -> Body:
    return {"error_code": code}
