"""DescribeGroups (API 15), versions 0 to 6.

Behaviour
    Classic groups with their members. What the members say, and the protocol, only of stable groups: between
    generations there is none. A group that is not there is Dead; from version 6 on also GROUP_ID_NOT_FOUND. So is one
    of another kind, which ConsumerGroupDescribe shows.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here.
"""

from collections.abc import Awaitable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.authorized_operations import NOT_ASKED, ON_GROUP
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import classic_describe
from skep.wire.codec import Body


async def handle(services: Services, request: Request) -> Body:
    wants_operations = getattr(request.body, "include_authorized_operations", False)
    groups = []
    for group_id in request.body.groups:
        entry = await _describe(services, group_id, request.version)
        operations = ON_GROUP if wants_operations and not entry.get("error_code") else NOT_ASKED
        groups.append({**entry, "authorized_operations": operations})
    return {"groups": groups}


async def _describe(services: Services, group_id: str, version: int) -> dict[str, Any]:
    try:
        check_group_id(services, group_id, may_be_empty=True)
        entry: Any = services.groups.submit(group_id, lambda shard: classic_describe.describe(shard, group_id, version))
        if isinstance(entry, Awaitable):
            entry = await entry
    except KafkaError as error:
        return {"group_id": group_id, "error_code": error.code}
    return dict(entry)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"groups": [{"group_id": group_id, "error_code": code} for group_id in request.body.groups]}
