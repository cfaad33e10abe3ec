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
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.refusals import code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.share.acknowledgements import Refusal, begin_acknowledgements, session_key, written
from skep.broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH
from skep.broker.topics.current_leaders import Leader, current_leader, endpoints_of
from skep.wire.codec import Body
from skep.wire.leader_hints import NodeEndpoint

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
    results = await written(begun)
    options = services.share_partitions.options(key.group_id)
    leaders: list[Leader | None] = []

    def partition(topic_id: Any, index: int, error: Refusal | None) -> dict[str, Any]:
        code = ErrorCode.none if error is None else code_of(error)
        leaders.append(current_leader(services, topic_id, index, code))
        leader_id, leader_epoch = leaders[-1] or _NO_LEADER
        return {
            "partition_index": index,
            "error_code": code,
            "error_message": None if error is None else message_of(error),
            "current_leader": {"leader_id": leader_id, "leader_epoch": leader_epoch},
        }

    topics: dict[Any, list[dict[str, Any]]] = {}
    for (topic_id, index), error in results.items():
        topics.setdefault(topic_id, []).append(partition(topic_id, index, error))
    return {
        "error_code": ErrorCode.none,
        "acquisition_lock_timeout": datetime.timedelta(milliseconds=options.record_lock_duration_ms),
        "responses": [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()],
        "node_endpoints": [_endpoint(one) for one in endpoints_of(services, leaders)],
    }


def _endpoint(endpoint: NodeEndpoint) -> dict[str, Any]:
    return endpoint._asdict()


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": code.name, "responses": [], "node_endpoints": []}
