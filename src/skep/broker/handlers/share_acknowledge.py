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
"""

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.refusals import code_of, message_of
from skep.broker.request import Parts, Request
from skep.broker.services import Services
from skep.broker.share.acknowledgements import (
    Begun,
    Refusal,
    begin_acknowledgements,
    session_key,
    written,
    written_already,
)
from skep.broker.share.share_partitions import TopicIdPartition
from skep.broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from skep.broker.topics.current_leaders import Leader, current_leader, endpoints_of
from skep.wire.codec import Body
from skep.wire.share.share_acknowledge_response import AcknowledgedPartition, encode_share_acknowledge

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ShareAcknowledgeRequest


def handle(services: Services, request: "Request[ShareAcknowledgeRequest]") -> Parts | Awaitable[Parts]:
    """The response is there at once if the results are."""
    body, sessions = request.body, services.share_sessions
    key, epoch = session_key(body), body.share_session_epoch
    if epoch == INITIAL_EPOCH:
        raise KafkaError(ErrorCode.invalid_share_session_epoch, "an acknowledgement cannot begin a share session")
    session = sessions.find(key) if epoch == FINAL_EPOCH else sessions.update(key, epoch)
    response = services.slicer.run(_at_once(services, request, session))
    return response if isinstance(response, tuple) else _later(services, request, response)


def _at_once(
    services: Services, request: "Request[ShareAcknowledgeRequest]", session: ShareSession
) -> Work[Parts | Begun]:
    """Returns the response, or the acknowledgements if there is one to wait for."""
    begun = yield from begin_acknowledgements(services.share_partitions, session.key, request)
    if request.body.share_session_epoch == FINAL_EPOCH:
        services.share_sessions.close(session)
    results = written_already(begun)
    return begun if results is None else (yield from _response(services, request, results))


async def _later(
    services: Services, request: "Request[ShareAcknowledgeRequest]", response: Parts | Begun | Awaitable[Parts | Begun]
) -> Parts:
    if isinstance(response, Awaitable):
        response = await response
    if not isinstance(response, dict):
        return response
    return await services.slicer.finish(_response(services, request, await written(response)))


def _response(
    services: Services, request: "Request[ShareAcknowledgeRequest]", results: Mapping[TopicIdPartition, Refusal | None]
) -> Work[Parts]:
    leaders: list[Leader | None] = []
    topics: dict[UUID, list[AcknowledgedPartition]] = {}
    for (topic_id, index), error in results.items():
        if error is None:
            result = AcknowledgedPartition(index)
        else:
            code = code_of(error)
            leaders.append(leader := current_leader(services, topic_id, index, code))
            result = AcknowledgedPartition(index, code, message_of(error), leader)
        topics.setdefault(topic_id, []).append(result)
        yield
    # A request names its group, or it has no session.
    options = services.share_partitions.options(request.body.group_id or "")
    parts = yield from encode_share_acknowledge(
        request.version,
        request.correlation_id,
        list(topics.items()),
        options.record_lock_duration_ms,
        services.config.max_response_bytes,
        endpoints_of(services, leaders, request.listener_name) if leaders else (),
        0 if request.throttle is None else request.throttle.ms,
    )
    return parts


def refuse(request: "Request[ShareAcknowledgeRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": code.name, "responses": [], "node_endpoints": []}
