"""Heartbeat (API 12), versions 0 to 4.

Behaviour
    The member's session begins anew. REBALANCE_IN_PROGRESS tells it to join again. While the coordinator is being
    loaded the answer is that all is well, as in Kafka: members need not fear for their session then.

Refusals, in order
    INVALID_GROUP_ID; no coordinator here; UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (3+); ILLEGAL_GENERATION.
"""

from collections.abc import Awaitable

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import classic_requests
from skep.wire.codec import Body


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    group_id = body.group_id
    check_group_id(services, group_id)
    instance_id = getattr(body, "group_instance_id", None)
    try:
        answer: Body | Awaitable[Body] = services.groups.submit(
            group_id,
            lambda shard: classic_requests.heartbeat(shard, group_id, body.member_id, instance_id, body.generation_id),
        )
    except KafkaError as error:
        if error.code is ErrorCode.coordinator_load_in_progress:
            return {}
        raise
    return answer


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code}
