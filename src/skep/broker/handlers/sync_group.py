"""SyncGroup (API 14), versions 0 to 5.

Behaviour
    The leader brings what each member is to read; it is written to ``__consumer_offsets``, and then everybody gets his
    part. Others wait for it. In a stable group each member gets what it was given.

    An assignment that cannot be written is refused with UNKNOWN_SERVER_ERROR when it is too large (max.message.bytes of
    ``__consumer_offsets``), or with what is in the way; the group rebalances.

Refusals, in order
    INVALID_GROUP_ID; no coordinator here; UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (3+); ILLEGAL_GENERATION;
    INCONSISTENT_GROUP_PROTOCOL (5+); REBALANCE_IN_PROGRESS.
"""

import contextlib
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import classic_requests
from skep.coordination.groups.classic import classic_sync as classic_syncing
from skep.coordination.groups.classic.classic_sync import SMALL_ASSIGNMENT, SyncRequest
from skep.wire.codec import Body

NOT_WRITTEN: dict[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_server_error: ErrorCode.unknown_server_error,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_not_available: ErrorCode.coordinator_not_available,
}
"""Why an append fails, and what Kafka makes of it for the member (appendGroupMetadataErrorToResponseError)."""


async def handle(services: Services, request: Request) -> Body:
    body = request.body
    check_group_id(services, body.group_id)
    wanted = SyncRequest(
        group_id=body.group_id,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=getattr(body, "group_instance_id", None),
        protocol_type=getattr(body, "protocol_type", None),
        protocol_name=getattr(body, "protocol_name", None),
        assignments={each.member_id: each.assignment for each in body.assignments},
    )
    try:
        made = None
        if len(wanted.assignments) > SMALL_ASSIGNMENT:
            made = await services.groups.prepare(
                body.group_id, lambda shard: classic_requests.prepare_sync(shard, wanted)
            )
        answer: dict[str, Any] = await services.groups.submit_and_wait(
            body.group_id, lambda shard, waiter: classic_requests.sync(shard, wanted, waiter, made)
        )
    except KafkaError as error:
        reason = error.code
        if reason not in NOT_WRITTEN:
            raise
        with contextlib.suppress(KafkaError):
            # Also when this is not committed the leader is told why there is no assignment.
            await services.groups.submit_and_wait(
                body.group_id,
                lambda shard, _: classic_syncing.assignment_lost(shard, body.group_id, body.generation_id, reason),
            )
        return refuse(request, NOT_WRITTEN[reason])
    return answer


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code}
