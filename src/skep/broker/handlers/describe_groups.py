"""DescribeGroups (API 15), versions 0 to 6.

Behaviour
    Returns classic groups with their members. Only a stable group has a protocol and the members' metadata; between
    generations there is none. A group that does not exist is Dead, and so is a consumer group, which
    ConsumerGroupDescribe returns. A group that is named several times is in the response once.

Versions
    1: ``throttle_time_ms``.
    2 changes nothing here (quotas).
    3: ``include_authorized_operations``, and the operations in the response (KIP-430).
    4: the instance ids of static members (KIP-345).
    5 is flexible.
    6: GROUP_ID_NOT_FOUND and a message for a group that does not exist (KIP-1043).

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here.
"""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.authorized_operations import NOT_ASKED, operations_on
from skep.broker.named_items import ask_each
from skep.broker.permissions import GROUP, check_item
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeGroupsRequest


async def handle(services: Services, request: "Request[DescribeGroupsRequest]") -> Body:
    def describe(group_id: str) -> Any:
        check_item(request, GROUP, group_id)
        return services.groups.describe_group(group_id, request.version)

    found = await ask_each(services.slicer, request.body.groups, describe, _refused)
    return {"groups": await services.slicer.finish(_described(request, found))}


def _described(request: "Request[DescribeGroupsRequest]", found: list[dict[str, Any]]) -> Work[list[dict[str, Any]]]:
    is_asked = getattr(request.body, "include_authorized_operations", False)
    groups = []
    for group in found:
        operations = NOT_ASKED
        if is_asked and not group.get("error_code"):
            operations = operations_on(request.access, GROUP, group["group_id"])
        groups.append({**group, "authorized_operations": operations})
        yield
    return groups


def _refused(group_id: str, error: KafkaError) -> dict[str, Any]:
    return {"group_id": group_id, "error_code": error.code}


def refuse(request: "Request[DescribeGroupsRequest]", code: ErrorCode) -> Body:
    return {"groups": LazyArray(request.body.groups, lambda name: {"group_id": name, "error_code": code})}
