"""LeaveGroup (API 13), versions 0 to 5.

Behaviour
    Removes members from the group, each with a code of its own. An administrator removes a static member by its
    instance id alone. Very many members are removed in several steps; when a step is refused, so are its members.

Versions
    1: ``throttle_time_ms``.
    2 changes nothing here (quotas).
    3: several members, and static ones (KIP-345); before, there is one member, and its code is that of the response.
    4 is flexible.
    5: ``reason`` (KIP-800), which is logged.

Refusals
    INVALID_GROUP_ID; no coordinator here.
Refusals per member
    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import LeaveGroupRequest

HAS_SEVERAL_MEMBERS = 3
MEMBERS_AT_ONCE = 100
"""Members removed by one operation."""


async def handle(services: Services, request: "Request[LeaveGroupRequest]") -> Body:
    body = request.body
    if request.version < HAS_SEVERAL_MEMBERS:
        leaving = [Leaving(body.member_id, None, None)]
    else:
        leaving = [Leaving(m.member_id, m.group_instance_id, getattr(m, "reason", None)) for m in body.members]
    responses: list[Any] = []
    # At least once, also without members: the coordinator may not be here.
    for start in range(0, max(1, len(leaving)), MEMBERS_AT_ONCE):
        some = leaving[start : start + MEMBERS_AT_ONCE]
        try:
            left = await services.slicer.finish(_leave(services, body.group_id, some))
            responses += await left if isinstance(left, Awaitable) else left
        except KafkaError as error:
            if not responses:
                raise
            responses += [_refused(entry, error.code) for entry in some]
    if request.version < HAS_SEVERAL_MEMBERS:
        return {"error_code": responses[0]["error_code"]}
    return {"members": responses}


def _leave(services: Services, group_id: str, leaving: list[Leaving]) -> Work[Any]:
    yield
    return services.groups.leave_group(group_id, leaving)


def _refused(entry: Leaving, code: ErrorCode) -> dict[str, Any]:
    return {"member_id": entry.member_id, "group_instance_id": entry.group_instance_id, "error_code": code}


def refuse(request: "Request[LeaveGroupRequest]", code: ErrorCode) -> Body:
    return {"error_code": code}
