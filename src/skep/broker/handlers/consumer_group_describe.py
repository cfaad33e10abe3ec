"""ConsumerGroupDescribe (API 69), versions 0 and 1 (KIP-848).

Behaviour
    Consumer groups with their epochs, and each member with what it subscribes to, what it has, and what it is to have.
    From version 1 on also whether the member speaks the classic protocol.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND, also for a group of another kind.
"""

from collections.abc import Awaitable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.authorized_operations import NOT_ASKED, ON_GROUP
from skep.broker.group_ids import check_group_id
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.consumer_describe import describe
from skep.wire.codec import Body


async def handle(services: Services, request: Request) -> Body:
    operations = ON_GROUP if request.body.include_authorized_operations else NOT_ASKED
    groups = []
    for group_id in request.body.group_ids:
        entry = await _describe(services, group_id)
        groups.append({**entry, "authorized_operations": NOT_ASKED if entry.get("error_code") else operations})
    return {"groups": groups}


async def _describe(services: Services, group_id: str) -> dict[str, Any]:
    try:
        check_group_id(services, group_id)
        entry: Any = services.groups.submit(group_id, lambda shard: describe(shard, group_id))
        if isinstance(entry, Awaitable):
            entry = await entry
    except KafkaError as error:
        return _refused(group_id, error.code, message_of(error))
    return dict(entry)


def _refused(group_id: str, code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {"group_id": group_id, "error_code": code, "error_message": message}


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"groups": [_refused(group_id, code) for group_id in request.body.group_ids]}
