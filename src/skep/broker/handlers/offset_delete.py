"""OffsetDelete (API 47), version 0.

Behaviour
    Forgets committed offsets of a group. A partition without one is no error. Very many are forgotten in several steps;
    when one of them is refused the request is, and those before it have been forgotten.

Refusals of the request, in order
    INVALID_GROUP_ID; no coordinator here; GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP when the group has members whose
    subscriptions cannot be read.
Refusals per partition
    UNKNOWN_TOPIC_OR_PARTITION; GROUP_SUBSCRIBED_TO_TOPIC.
"""

from collections.abc import Awaitable, Container
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Work
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.committed_offsets import Place
from skep.coordination.groups.offsets import offset_operations as committing
from skep.coordination.groups.offsets.offset_operations import Codes
from skep.wire.codec import Body


async def handle(services: Services, request: Request) -> Body:
    body, finish = request.body, services.slicer.finish
    check_group_id(services, body.group_id, may_be_empty=True)
    known = services.catalog.image.topics
    wanted = await finish(_wanted(body.topics, known))
    codes: Codes = []
    # Also without any: the group may not be there. Many are as several requests in a row, the first of which tells it.
    for start in range(0, max(1, len(wanted)), committing.OFFSETS_AT_ONCE):
        deleted = await finish(_deleted(services, body.group_id, wanted[start : start + committing.OFFSETS_AT_ONCE]))
        codes += await deleted if isinstance(deleted, Awaitable) else deleted
    return {"topics": await finish(_answer(body.topics, known, codes))}


def _wanted(topics: Any, known: Container[str]) -> Work[list[Place]]:
    wanted = []
    for topic in topics:
        if topic.name in known:
            for partition in topic.partitions:
                wanted.append((topic.name, partition.partition_index))
                yield
    return wanted


def _deleted(services: Services, group_id: str, places: list[Place]) -> Work[Any]:
    yield
    return services.groups.submit(group_id, lambda shard: committing.delete(shard, group_id, places))


def _answer(topics: Any, known: Container[str], codes: Codes) -> Work[list[dict[str, Any]]]:
    left = iter(codes)
    answered = []
    for topic in topics:
        is_known, partitions = topic.name in known, []
        for partition in topic.partitions:
            code = next(left) if is_known else ErrorCode.unknown_topic_or_partition
            partitions.append({"partition_index": partition.partition_index, "error_code": code})
            yield
        answered.append({"name": topic.name, "partitions": partitions})
    return answered


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "topics": []}
