"""ConsumerGroupDescribe (API 69), versions 0 and 1 (KIP-848).

Behaviour
    Returns consumer groups with their epochs, and each member with its subscription, its assignment and its target
    assignment. A group that is named several times is in the response once.

Versions
    1: whether a member uses the classic protocol (``member_type``, KIP-1099).

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND, also for a group of another kind.
"""

from typing import Any

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Work
from skep.broker.authorized_operations import NOT_ASKED, ON_GROUP
from skep.broker.named_items import ask_each
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.consumer.consumer_description import GroupSnapshot, described
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray


async def handle(services: Services, request: Request) -> Body:
    operations = ON_GROUP if request.body.include_authorized_operations else NOT_ASKED
    found = await ask_each(
        services.slicer,
        request.body.group_ids,
        services.groups.describe_consumer_group,
        lambda group_id, error: _refused(group_id, error.code, message_of(error)),
    )
    return {"groups": await services.slicer.finish(_described(found, operations))}


def _described(found: list[GroupSnapshot | dict[str, Any]], operations: int) -> Work[list[dict[str, Any]]]:
    groups = []
    for group in found:
        if isinstance(group, GroupSnapshot):
            entry = yield from described(group)
            groups.append({**entry, "authorized_operations": operations})
        else:
            groups.append(group)
    return groups


def _refused(group_id: str, code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "error_code": code,
        "error_message": message,
        "authorized_operations": NOT_ASKED,
    }


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"groups": LazyArray(request.body.group_ids, lambda group_id: _refused(group_id, code))}
