"""ShareAcknowledge (API 79), versions 1 and 2.

Behaviour
    A member says of records that it has acquired whether they are accepted, released, rejected, or do not exist. The
    response is sent when the result is written to the share coordinator. All acknowledgements of a partition have their
    effect, or none has. The last epoch, -1, also ends the share session.

    A broker that does not lead a partition names the leader in its refusal.

Versions
    1 is the first served; 0 was that of an early access.
    2: locks can be renewed (KIP-1222), and the response has the time for which records are locked.

Refusals
    INVALID_REQUEST: no group, no member id, or one of more than 36 characters; of a partition: batches that overlap,
    have no or unknown types, or end past the records in flight.
    INVALID_SHARE_SESSION_EPOCH: the epoch is 0 or not the next one. SHARE_SESSION_NOT_FOUND.
    UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER of a partition.
    INVALID_RECORD_STATE: records that the member does not hold, or whose acknowledgement is being written.

Left out
    Quotas: ``throttle_time`` is 0.
"""

import datetime
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.refusals import code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.share.acknowledgements import Refusal, begin_acknowledgements, session_key, written
from skep.broker.share.share_partitions import TopicIdPartition
from skep.broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH
from skep.broker.topics.current_leaders import Leader, current_leader, endpoints_of
from skep.wire.codec import Body

_NO_LEADER = (-1, -1)


async def handle(services: Services, request: Request) -> Body:
    body, sessions = request.body, services.share_sessions
    key, epoch = session_key(body), body.share_session_epoch
    if epoch == INITIAL_EPOCH:
        raise KafkaError(ErrorCode.invalid_share_session_epoch, "an acknowledgement cannot begin a share session")
    session = sessions.find(key) if epoch == FINAL_EPOCH else sessions.update(key, epoch)
    begun = await services.slicer.finish(begin_acknowledgements(services.share_partitions, key, request))
    if epoch == FINAL_EPOCH:
        sessions.close(session)
    return await services.slicer.finish(_response(services, key.group_id, await written(begun)))


def _response(
    services: Services, group_id: str, results: Mapping[TopicIdPartition, Refusal | None]
) -> Work[dict[str, Any]]:
    leaders: list[Leader | None] = []
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for (topic_id, index), error in results.items():
        code = ErrorCode.none if error is None else code_of(error)
        leader = current_leader(services, topic_id, index, code)
        leaders.append(leader)
        leader_id, leader_epoch = leader or _NO_LEADER
        topics.setdefault(topic_id, []).append(
            {
                "partition_index": index,
                "error_code": code,
                "error_message": None if error is None else message_of(error),
                "current_leader": {"leader_id": leader_id, "leader_epoch": leader_epoch},
            }
        )
        yield
    lock_ms = services.share_partitions.options(group_id).record_lock_duration_ms
    return {
        "error_code": ErrorCode.none,
        "acquisition_lock_timeout": datetime.timedelta(milliseconds=lock_ms),
        "responses": [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()],
        "node_endpoints": [one._asdict() for one in endpoints_of(services, leaders)],
    }


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": code.name, "responses": [], "node_endpoints": []}
