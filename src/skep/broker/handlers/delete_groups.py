"""DeleteGroups (API 42), versions 0 to 2.

Behaviour
    Deletes each group that has no members, with its offsets, or with its state if it is a share group. A group that is
    named several times is in the response once.

    A group with very many offsets is deleted in several steps. If a member joins meanwhile, or the coordinator moves,
    some offsets are deleted and the response has the reason why the others are not.

Versions
    1 changes nothing here (quotas).
    2 is flexible.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP; for a share group, its state cannot be
    deleted now.
"""

import itertools
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.named_items import ask_each, each_once
from skep.broker.permissions import GROUP, check_item
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DeleteGroupsRequest


async def handle(services: Services, request: "Request[DeleteGroupsRequest]") -> Body:
    names = await services.slicer.finish(each_once(request.body.groups_names))
    refusals: dict[str, ErrorCode] = {}
    in_part: set[str] = set()

    def delete(group_id: str) -> bool | Awaitable[bool]:
        check_item(request, GROUP, group_id)
        has_state = services.share_groups.has(group_id)
        return services.share_groups.delete_group(group_id) if has_state else services.groups.delete_group(group_id)

    def refused(group_id: str, error: KafkaError) -> bool:
        # A group deleted in part may have been deleted completely by another request since.
        if group_id not in in_part or error.code is not ErrorCode.group_id_not_found:
            refusals[group_id] = error.code
        return False

    left = names
    while left:
        has_more = await ask_each(services.slicer, left, delete, refused)
        left = list(itertools.compress(left, has_more))
        in_part.update(left)
    return {"results": await services.slicer.finish(_results(names, refusals))}


def _results(names: Iterable[str], refusals: Mapping[str, ErrorCode]) -> Work[list[dict[str, Any]]]:
    results = []
    for group_id in names:
        results.append({"group_id": group_id, "error_code": refusals.get(group_id, ErrorCode.none)})
        yield
    return results


def refuse(request: "Request[DeleteGroupsRequest]", code: ErrorCode) -> Body:
    return {"results": LazyArray(request.body.groups_names, lambda name: {"group_id": name, "error_code": code})}
