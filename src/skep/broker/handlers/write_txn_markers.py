"""WriteTxnMarkers (API 27), version 1.

Behaviour
    Ends a producer's transaction in the named partitions, without asking whether its coordinator knows of it: this is
    how a coordinator on another broker does it, and how an operator ends a transaction that hangs. In a partition of
    ``__consumer_offsets`` the offsets of the transaction come to count, or not.

Refusals, per partition
    UNKNOWN_TOPIC_OR_PARTITION; INVALID_PRODUCER_EPOCH for an epoch that is over; TRANSACTION_COORDINATOR_FENCED for a
    coordinator's that is; NOT_LEADER_OR_FOLLOWER when the group's coordinator is not ready; KAFKA_STORAGE_ERROR.

Left out
    Version 2, which says that the marker is one of transactions v2 (KIP-890).
"""

from asyncio import Future
from typing import Any

from skep.base.errors import ErrorCode
from skep.broker.internal_topics import CONSUMER_OFFSETS
from skep.broker.refusals import ANSWERABLE, code_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.wire.codec import Body

_GROUPS_NOT_READY = frozenset(
    {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator}
)


async def handle(services: Services, request: Request) -> Body:
    return {"markers": [await _write(services, marker) for marker in request.body.markers]}


async def _write(services: Services, marker: Any) -> dict[str, Any]:
    places = [(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
    written = [_append(services, marker, *place) for place in places]
    codes = iter([await _settled(one) for one in written])
    topics = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": index, "error_code": next(codes)} for index in topic.partition_indexes],
        }
        for topic in marker.topics
    ]
    return {"producer_id": marker.producer_id, "topics": topics}


def _append(services: Services, marker: Any, topic: str, index: int) -> "Future[None] | ErrorCode":
    """The code at once, or the sync that is waited for."""
    try:
        if topic == CONSUMER_OFFSETS:
            producer = ProducerStamp(marker.producer_id, marker.producer_epoch)
            synced = services.groups.end_transaction(
                index, producer, marker.coordinator_epoch, is_committed=marker.transaction_result
            )
        else:
            # Also when the disk is so full that records are refused: a marker is what lets readers go on.
            _, synced = services.replicas.partition(topic, index).append_marker(
                marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_result
            )
    except ANSWERABLE as error:
        code = code_of(error)
        return ErrorCode.not_leader_or_follower if code in _GROUPS_NOT_READY else code
    return ErrorCode.none if synced is None else synced


async def _settled(written: "Future[None] | ErrorCode") -> ErrorCode:
    if isinstance(written, ErrorCode):
        return written
    try:
        await written
    except ANSWERABLE as error:
        return code_of(error)
    return ErrorCode.none


def refuse(request: Request, code: ErrorCode) -> Body:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": code} for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.body.markers
        ]
    }
