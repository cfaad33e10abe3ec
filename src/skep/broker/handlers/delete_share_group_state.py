"""DeleteShareGroupState (API 86), version 0.

Behaviour
    For brokers: the group coordinator deletes the state of share partitions whose group or topic is deleted. The
    response is sent when all in-sync replicas have deleted it. What does not exist is deleted already.

Versions
    0 is the only one.

Refusals, per partition
    INVALID_GROUP_ID; no coordinator here.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker import share_partition_results
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.share.share_state import SharePartitionKey
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DeleteShareGroupStateRequest


def handle(services: Services, request: "Request[DeleteShareGroupStateRequest]") -> Awaitable[Body]:
    async def delete(key: SharePartitionKey, _wanted: "DeleteShareGroupStateRequest.PartitionData") -> None:
        await services.share.delete(key)

    return share_partition_results.results(request.body, delete)


def refuse(request: "Request[DeleteShareGroupStateRequest]", code: ErrorCode) -> Body:
    return share_partition_results.refusals(request.body, code)
