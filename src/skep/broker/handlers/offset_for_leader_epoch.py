"""OffsetForLeaderEpoch (API 23), versions 2 to 4.

Behaviour
    Returns the end of a leader epoch: the start of the next epoch, or the log end if it is the current one. A client
    whose position is past it has read records that were truncated (KIP-101, KIP-320). For an unknown epoch the result
    is -1, -1; for one between two known epochs it is the older of these (KIP-279).

Versions
    2 is the first with ``current_leader_epoch``, by which the leader fences older and newer metadata (KIP-320).
    3: ``replica_id``.
    4 is flexible.

Refusals, per partition
    UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER, also when another broker may have been elected;
    FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; KAFKA_STORAGE_ERROR.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import LeaderEpoch
from skep.base.loop.slicer import Work
from skep.broker.permissions import TOPIC, allowed
from skep.broker.refusals import code_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import OffsetForLeaderEpochRequest

_UNDEFINED = (-1, -1)


def handle(services: Services, request: "Request[OffsetForLeaderEpochRequest]") -> Body | Awaitable[Body]:
    return services.slicer.run(_looked_up(services, request))


def _looked_up(services: Services, request: "Request[OffsetForLeaderEpochRequest]") -> Work[Body]:
    topics = []
    for topic in request.body.topics:
        partitions = []
        is_allowed = allowed(request, TOPIC, topic.topic)
        for wanted in topic.partitions:
            if is_allowed:
                partitions.append(_look_up(services, topic.topic, wanted))
            else:
                partitions.append(_refused(wanted, ErrorCode.topic_authorization_failed))
            yield
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _look_up(
    services: Services, topic: str, wanted: "OffsetForLeaderEpochRequest.OffsetForLeaderPartition"
) -> dict[str, Any]:
    (epoch, end_offset), code = _UNDEFINED, ErrorCode.none
    try:
        partition = services.replicas.partition(topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        partition.check_leads()
        epoch, end_offset = partition.log.end_offset_for_epoch(LeaderEpoch(wanted.leader_epoch))
    except (KafkaError, StorageError) as error:
        code = code_of(error)
    return {"partition": wanted.partition, "leader_epoch": epoch, "end_offset": end_offset, "error_code": code}


def _refused(wanted: "OffsetForLeaderEpochRequest.OffsetForLeaderPartition", code: ErrorCode) -> dict[str, Any]:
    return {"partition": wanted.partition, "error_code": code, "leader_epoch": -1, "end_offset": -1}


def refuse(request: "Request[OffsetForLeaderEpochRequest]", code: ErrorCode) -> Body:
    def topic(named: "OffsetForLeaderEpochRequest.OffsetForLeaderTopic") -> dict[str, Any]:
        return {"topic": named.topic, "partitions": LazyArray(named.partitions, lambda wanted: _refused(wanted, code))}

    return {"topics": LazyArray(request.body.topics, topic)}
