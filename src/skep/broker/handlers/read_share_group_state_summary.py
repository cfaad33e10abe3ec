"""ReadShareGroupStateSummary (API 87), versions 0 to 1.

Behaviour
    For brokers: the group coordinator reads the start offset of share partitions and how many offsets from there on
    are done, for the lag. A state that does not exist has the start offset -1. Nobody is fenced, and the leader epoch
    of the request has no effect.

Versions
    1: the number of offsets from the start offset on that need no further delivery (KIP-1226).

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
    from skep.wire.entities.request_types import ReadShareGroupStateSummaryRequest


def handle(services: Services, request: "Request[ReadShareGroupStateSummaryRequest]") -> Awaitable[Body]:
    async def summary(key: SharePartitionKey, _wanted: "ReadShareGroupStateSummaryRequest.PartitionData") -> Body:
        state = await services.share.summary(key)
        return {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start_offset,
            "delivery_complete_count": state.delivery_complete_count,
        }

    return share_partition_results.results(request.body, summary)


def refuse(request: "Request[ReadShareGroupStateSummaryRequest]", code: ErrorCode) -> Body:
    return share_partition_results.refusals(request.body, code)
