"""DeleteGroups (API 42), versions 0 to 2.

Behaviour
    Each group goes with its offsets, if it has no members.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP.
"""

from collections.abc import Awaitable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import committing
from skep.wire.codec import Body


async def handle(services: Services, request: Request) -> Body:
    # A name that is given twice is there once: the second would only be told that it is gone.
    return {"results": [await _delete(services, group_id) for group_id in dict.fromkeys(request.body.groups_names)]}


async def _delete(services: Services, group_id: str) -> dict[str, Any]:
    code = ErrorCode.none
    try:
        check_group_id(services, group_id, may_be_empty=True)
        deleted = services.groups.submit(group_id, lambda shard: committing.delete_group(shard, group_id))
        if isinstance(deleted, Awaitable):
            await deleted
    except KafkaError as error:
        code = error.code
    return {"group_id": group_id, "error_code": code}


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"results": [{"group_id": group_id, "error_code": code} for group_id in request.body.groups_names]}
