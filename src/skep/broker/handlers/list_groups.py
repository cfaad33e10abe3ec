"""ListGroups (API 16), versions 0 to 5.

Behaviour
    Returns the groups that this broker coordinates and the client may describe. Filters ignore case. A group that has
    only offsets is Empty and classic.

Versions
    1: ``throttle_time_ms``.
    2 changes nothing here (quotas).
    3 is flexible.
    4: groups by state, and their states (KIP-518).
    5: groups by type, and their types (KIP-848).

Refusals
    COORDINATOR_LOAD_IN_PROGRESS while some groups are not loaded: an incomplete list would look complete.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.permissions import CLUSTER, DESCRIBE, GROUP, visible
from skep.broker.request import Request
from skep.broker.services import Services
from skep.security.operations import CLUSTER_NAME
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ListGroupsRequest


async def handle(services: Services, request: "Request[ListGroupsRequest]") -> Body:
    states = {state.lower() for state in getattr(request.body, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request.body, "types_filter", ())}
    groups = await services.groups.list_groups(states, types)
    if not request.access.allows(DESCRIBE, CLUSTER, CLUSTER_NAME):
        return {"groups": await services.slicer.finish(visible(request, GROUP, groups, "group_id"))}
    return {"groups": groups}


def refuse(request: "Request[ListGroupsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "groups": []}
