"""WriteShareGroupState (API 85), versions 0 to 1.

Behaviour
    For brokers: the leader of a partition writes what has changed in the state of its deliveries. For each offset the
    furthest state is kept, so a request may be repeated. The response is sent when all in-sync replicas have the state.

Versions
    1: the number of offsets from the start offset on that need no further delivery (KIP-1226).

Refusals, per partition
    INVALID_GROUP_ID; no coordinator here; INVALID_REQUEST for negative epochs, for batches that cannot be, when the
    state is not initialized, and when it would have too many batches; UNKNOWN_TOPIC_OR_PARTITION; FENCED_LEADER_EPOCH
    below the epoch of the last leader; FENCED_STATE_EPOCH for another state epoch than the current one.
    REQUEST_TIMED_OUT for a change that is in the log but may still be lost.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker import share_partition_results
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.share.share_state import UNINITIALIZED, SharePartitionKey, ShareState
from skep.coordination.share.state_messages import batches_received, generation_received
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import WriteShareGroupStateRequest


def handle(services: Services, request: "Request[WriteShareGroupStateRequest]") -> Awaitable[Body]:
    async def write(key: SharePartitionKey, written: "WriteShareGroupStateRequest.PartitionData") -> None:
        state = ShareState(
            written.state_epoch,
            written.leader_epoch,
            written.start_offset,
            getattr(written, "delivery_complete_count", UNINITIALIZED),
            batches_received(written),
            generation_received(written),
        )
        await services.share.write(key, state)

    return share_partition_results.results(request.body, write)


def refuse(request: "Request[WriteShareGroupStateRequest]", code: ErrorCode) -> Body:
    return share_partition_results.refusals(request.body, code)
