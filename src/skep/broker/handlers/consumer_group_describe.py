"""ConsumerGroupDescribe (API 69), versions 0 and 1 (KIP-848).

Behaviour
    Returns consumer groups with their epochs, and each member with its subscription, its assignment and its target
    assignment. A group that is named several times is in the response once.

Versions
    1: whether a member uses the classic protocol (``member_type``, KIP-1099).

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND, also for a group of another kind.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.described_groups import describe_groups, refusals
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.consumer.consumer_description import described
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ConsumerGroupDescribeRequest


async def handle(services: Services, request: "Request[ConsumerGroupDescribeRequest]") -> Body:
    return await describe_groups(services, request, services.groups.describe_consumer_group, described)


def refuse(request: "Request[ConsumerGroupDescribeRequest]", code: ErrorCode) -> Body:
    return refusals(request, code)
