"""ConsumerGroupHeartbeat (API 68), versions 0 and 1 (KIP-848).

Behaviour
    Joins a consumer group (epoch 0), stays in it, learns which partitions to consume and which to give up, and leaves
    it (epoch -1; -2 for a static member that comes back). Fields that are null have not changed since the last
    heartbeat; so has an assignment that is null in the answer. From version 1 on the member makes its own id, and can
    subscribe to a regular expression in RE2's syntax, to which a whole name must match.

    A classic group becomes a consumer group by the first heartbeat with epoch 0. For a large group this takes a while,
    and is refused with COORDINATOR_LOAD_IN_PROGRESS if the group changes meanwhile, or does so already.

Refusals, in order
    INVALID_REQUEST for what is missing or makes no sense; UNSUPPORTED_ASSIGNOR; INVALID_GROUP_ID for a name that is too
    long; no coordinator here; GROUP_ID_NOT_FOUND; GROUP_MAX_SIZE_REACHED; UNKNOWN_MEMBER_ID; FENCED_MEMBER_EPOCH;
    UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID; GROUP_MAX_SIZE_REACHED when the members would say more than
    skep.max.group.metadata.bytes of themselves, topic names for the most part; INVALID_REGULAR_EXPRESSION.

Left out
    ``rack_id`` is kept and shown, and no assignor looks at it, as in Kafka.
"""

import datetime
from collections.abc import Awaitable

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.group_ids import check_group_id
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.consumer.consumer_member import JOINING_EPOCH
from skep.coordination.groups.membership.consumer_heartbeat import Heartbeat, heartbeat, upgrade_and_join
from skep.coordination.groups.migration.upgrade import large_group
from skep.wire.codec import Body

_MILLISECOND = datetime.timedelta(milliseconds=1)


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    said = _heartbeat(request)
    try:
        check_group_id(services, said.group_id, may_be_empty=True)
        if said.member_epoch == JOINING_EPOCH and large_group(services.groups.shard_of(said.group_id), said.group_id):
            return _upgrade_and_join(services, said)
        answer: Body | Awaitable[Body] = services.groups.submit(said.group_id, lambda shard: heartbeat(shard, said))
    except KafkaError as error:
        return {"error_code": error.code, "error_message": message_of(error)}
    return answer


async def _upgrade_and_join(services: Services, said: Heartbeat) -> Body:
    try:
        operation = await services.groups.prepare(said.group_id, lambda shard: upgrade_and_join(shard, said))
        response: Body | Awaitable[Body] = services.groups.submit(said.group_id, operation)
        return await response if isinstance(response, Awaitable) else response
    except KafkaError as error:
        return {"error_code": error.code, "error_message": message_of(error)}


def _heartbeat(request: Request) -> Heartbeat:
    body = request.body
    names, owned = body.subscribed_topic_names, body.topic_partitions
    return Heartbeat(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        client_id=request.client_id or "",
        client_host=f"/{request.client_host}",
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout // _MILLISECOND,
        topic_names=None if names is None else frozenset(names),
        topic_regex=getattr(body, "subscribed_topic_regex", None),
        server_assignor=body.server_assignor,
        owned=None
        if owned is None
        else {topic.topic_id: frozenset(topic.partitions) for topic in owned if topic.partitions},
        version=request.version,
    )


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code}
