"""LeaveGroup (API 13), versions 0 to 5.

Behaviour
    Members go, several at once from version 3 on, each with a code of its own. A static member can be named by its
    instance id alone, which is how an administrator removes it. The reason (5+, KIP-800) goes to the log.

Refusals
    INVALID_GROUP_ID; no coordinator here.
Refusals per member
    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. Before version 3 there is one member, and its code is the answer's.
"""

from collections.abc import Awaitable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import classic_requests
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.wire.codec import Body

HAS_SEVERAL_MEMBERS = 3
MEMBERS_AT_ONCE = 100


async def handle(services: Services, request: Request) -> Body:
    body = request.body
    check_group_id(services, body.group_id)
    if request.version < HAS_SEVERAL_MEMBERS:
        leaving = [Leaving(body.member_id, None, None)]
    else:
        leaving = [Leaving(m.member_id, m.group_instance_id, getattr(m, "reason", None)) for m in body.members]
    answers: list[Any] = []
    # Also without any: the group may not be there. Many are as several requests in a row.
    for start in range(0, max(1, len(leaving)), MEMBERS_AT_ONCE):
        some = leaving[start : start + MEMBERS_AT_ONCE]
        try:
            left = await services.slicer.finish(_left(services, body.group_id, some))
            answers += await left if isinstance(left, Awaitable) else left
        except KafkaError as error:
            if not answers:
                raise
            answers += [_refused(entry, error.code) for entry in some]
    if request.version < HAS_SEVERAL_MEMBERS:
        return {"error_code": answers[0]["error_code"]}
    return {"members": answers}


def _left(services: Services, group_id: str, leaving: list[Leaving]) -> Work[Any]:
    yield
    return services.groups.submit(group_id, lambda shard: classic_requests.leave(shard, group_id, leaving))


def _refused(entry: Leaving, code: ErrorCode) -> dict[str, Any]:
    return {"member_id": entry.member_id, "group_instance_id": entry.group_instance_id, "error_code": code}


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code}
