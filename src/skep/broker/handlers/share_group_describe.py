"""ShareGroupDescribe (API 77), version 1 (KIP-932).

Behaviour
    Returns share groups with their epochs, and each member with its subscription and its assignment. A group that is
    named several times is in the response once.

Versions
    1 is the only one served; 0 was that of an early access.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND, also for a group of another kind.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.described_groups import describe_groups, refusals
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.share.share_description import described
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ShareGroupDescribeRequest


async def handle(services: Services, request: "Request[ShareGroupDescribeRequest]") -> Body:
    return await describe_groups(services, request, services.share_groups.describe, described)


def refuse(request: "Request[ShareGroupDescribeRequest]", code: ErrorCode) -> Body:
    return refusals(request, code)
