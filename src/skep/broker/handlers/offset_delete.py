"""OffsetDelete (API 47), version 0.

Behaviour
    Forgets committed offsets of a group. A partition without one is no error.

Refusals of the request, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP when the group has members whose
    subscriptions cannot be read.
Refusals per partition
    UNKNOWN_TOPIC_OR_PARTITION; GROUP_SUBSCRIBED_TO_TOPIC.
"""

from collections.abc import Awaitable

from skep.base.errors import ErrorCode
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import committing
from skep.wire.codec import Body


async def handle(services: Services, request: Request) -> Body:
    body = request.body
    check_group_id(services, body.group_id, may_be_empty=True)
    topics = services.catalog.image.topics
    wanted = [
        (topic.name, partition.partition_index)
        for topic in body.topics
        if topic.name in topics
        for partition in topic.partitions
    ]
    codes = services.groups.submit(body.group_id, lambda shard: committing.delete(shard, body.group_id, wanted))
    left = iter(await codes if isinstance(codes, Awaitable) else codes)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": next(left) if topic.name in topics else ErrorCode.unknown_topic_or_partition,
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "topics": []}
