"""InitializeShareGroupState (API 83), version 0.

Behaviour
    For brokers: the group coordinator begins the state of share partitions, or begins it again when an operator resets
    their offsets, with a higher state epoch. The response is sent when all in-sync replicas have the state. Repeating a
    request changes nothing.

Versions
    0 is the only one.

Refusals, per partition
    INVALID_GROUP_ID; no coordinator here; INVALID_REQUEST for a negative state epoch or a start offset below -1;
    UNKNOWN_TOPIC_OR_PARTITION; FENCED_STATE_EPOCH below the current state epoch; POLICY_VIOLATION above
    skep.max.share.partitions.
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
    from skep.wire.entities.request_types import InitializeShareGroupStateRequest


def handle(services: Services, request: "Request[InitializeShareGroupStateRequest]") -> Awaitable[Body]:
    async def initialize(key: SharePartitionKey, wanted: "InitializeShareGroupStateRequest.PartitionData") -> None:
        await services.share.initialize(key, wanted.state_epoch, wanted.start_offset)

    return share_partition_results.results(request.body, initialize)


def refuse(request: "Request[InitializeShareGroupStateRequest]", code: ErrorCode) -> Body:
    return share_partition_results.refusals(request.body, code)
