"""WriteTxnMarkers (API 27), versions 1 to 2.

Behaviour
    Ends a producer's transaction in the named partitions without asking its coordinator. This is how a coordinator on
    another broker ends a transaction, and how an operator ends one that hangs. In a partition of
    ``__consumer_offsets`` the offsets of the transaction take effect or are dropped. The response is sent when all
    in-sync replicas have the markers.

Versions
    1 is flexible, and otherwise equal to version 0, which Kafka 4.0 removed.
    2: the version of the transaction (KIP-1228). A marker of v2 has the epoch of the producer's next transaction, and
    is refused when that has begun: it is a copy that was delayed.

Refusals, per partition
    UNKNOWN_TOPIC_OR_PARTITION; INVALID_PRODUCER_EPOCH for a fenced producer epoch; TRANSACTION_COORDINATOR_FENCED for
    a fenced coordinator epoch; NOT_LEADER_OR_FOLLOWER, also when the group coordinator is not loaded;
    NOT_ENOUGH_REPLICAS; KAFKA_STORAGE_ERROR. REQUEST_TIMED_OUT or NOT_ENOUGH_REPLICAS_AFTER_APPEND for a marker that
    is appended but may still be lost.
"""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skep.base.config.coordinator_config import CONSUMER_OFFSETS
from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Work
from skep.broker.refusals import RESPONSE_ERRORS, code_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.transaction import V2
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import WriteTxnMarkersRequest

_GROUPS_NOT_READY = frozenset(
    {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator}
)

LONGEST_WAIT_S = 5.0
"""How long the response waits for the replicas of one partition: the results of all other partitions wait with it."""

_Codes = dict[tuple[str, int], "Future[None] | ErrorCode"]


async def handle(services: Services, request: "Request[WriteTxnMarkersRequest]") -> Body:
    # All markers are appended before the first commit is awaited: the replicas fetch them together.
    markers, finish = request.body.markers, services.slicer.finish
    written = await finish(_append_all(services, markers))
    waiting = [one for codes in written for one in codes.values() if not isinstance(one, ErrorCode)]
    if waiting:
        await asyncio.wait(waiting, timeout=LONGEST_WAIT_S)
    return {"markers": await finish(_results(markers, written))}


def _append_all(
    services: Services, markers: "Sequence[WriteTxnMarkersRequest.WritableTxnMarker]"
) -> Work[list[_Codes]]:
    written = []
    for marker in markers:
        codes: _Codes = {}
        for topic in marker.topics:
            for index in topic.partition_indexes:
                if (topic.name, index) not in codes:
                    codes[topic.name, index] = _append(services, marker, topic.name, index)
                yield
        written.append(codes)
    return written


def _append(
    services: Services, marker: "WriteTxnMarkersRequest.WritableTxnMarker", topic: str, index: int
) -> "Future[None] | ErrorCode":
    """Returns the error code if it is known at once, otherwise the future of the commit."""
    try:
        raises_epoch = getattr(marker, "transaction_version", 0) >= V2
        if topic == CONSUMER_OFFSETS:
            producer = ProducerStamp(marker.producer_id, marker.producer_epoch)
            committed = services.groups.end_transaction(
                index,
                producer,
                marker.coordinator_epoch,
                is_committed=marker.transaction_result,
                raises_epoch=raises_epoch,
            )
        else:
            # Markers are accepted when the disk is too full for records: they are what lets readers go on.
            _, committed = services.replicas.partition(topic, index).append_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.transaction_result,
                raises_epoch=raises_epoch,
            )
    except RESPONSE_ERRORS as error:
        code = code_of(error)
        return ErrorCode.not_leader_or_follower if code in _GROUPS_NOT_READY else code
    guards, place = services.transactions.verifier.guards, TopicPartition(topic, index)
    guards.marker_written(place, marker.producer_id, raises_epoch=raises_epoch)
    return ErrorCode.none if committed is None else committed


def _results(
    markers: "Sequence[WriteTxnMarkersRequest.WritableTxnMarker]", written: list[_Codes]
) -> Work[list[dict[str, Any]]]:
    results = []
    for marker, codes in zip(markers, written, strict=True):
        topics = []
        for topic in marker.topics:
            partitions = []
            for index in topic.partition_indexes:
                partitions.append({"partition_index": index, "error_code": _settled(codes[topic.name, index])})
                yield
            topics.append({"name": topic.name, "partitions": partitions})
        results.append({"producer_id": marker.producer_id, "topics": topics})
    return results


def _settled(written: "Future[None] | ErrorCode") -> ErrorCode:
    if isinstance(written, ErrorCode):
        return written
    if not written.done():
        return ErrorCode.request_timed_out
    error = asyncio.CancelledError() if written.cancelled() else written.exception()
    if error is None:
        return ErrorCode.none
    return code_of(error) if isinstance(error, RESPONSE_ERRORS) else ErrorCode.kafka_storage_error


def refuse(request: "Request[WriteTxnMarkersRequest]", code: ErrorCode) -> Body:
    def partition(index: int) -> dict[str, Any]:
        return {"partition_index": index, "error_code": code}

    def topic(named: "WriteTxnMarkersRequest.WritableTxnMarkerTopic") -> dict[str, Any]:
        return {"name": named.name, "partitions": LazyArray(named.partition_indexes, partition)}

    def marker(ended: "WriteTxnMarkersRequest.WritableTxnMarker") -> dict[str, Any]:
        return {"producer_id": ended.producer_id, "topics": LazyArray(ended.topics, topic)}

    return {"markers": LazyArray(request.body.markers, marker)}
