"""ReadShareGroupState (API 84), version 0.

Behaviour
    For brokers: a new leader of a partition reads the state of its deliveries. The leaders of earlier epochs cannot
    write from then on. The response is sent when all in-sync replicas have what it says.

Versions
    0 is the only one.

Refusals, per partition
    INVALID_GROUP_ID; no coordinator here; INVALID_REQUEST for a negative leader epoch, or when the state is not
    initialized; UNKNOWN_TOPIC_OR_PARTITION; FENCED_LEADER_EPOCH below the epoch of the last leader.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker import share_partition_results
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.share.share_state import SharePartitionKey
from skep.coordination.share.state_messages import fields_of
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ReadShareGroupStateRequest


def handle(services: Services, request: "Request[ReadShareGroupStateRequest]") -> Awaitable[Body]:
    async def read(key: SharePartitionKey, wanted: "ReadShareGroupStateRequest.PartitionData") -> Body:
        state = await services.share.read(key, wanted.leader_epoch)
        return {
            "state_epoch": state.state_epoch,
            "start_offset": state.start_offset,
            **fields_of(state),
        }

    return share_partition_results.results(request.body, read)


def refuse(request: "Request[ReadShareGroupStateRequest]", code: ErrorCode) -> Body:
    return share_partition_results.refusals(request.body, code)
