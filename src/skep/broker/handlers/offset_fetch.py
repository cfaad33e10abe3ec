"""OffsetFetch (API 9), versions 1 to 10.

Behaviour
    What is committed for the partitions asked for, or for all (topics null, from version 2 on). An offset that was
    never committed is -1, also in a group that nobody has heard of. From version 8 on several groups in one request,
    each with a code of its own; from 10 on topics by id.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH (from version 9 on, in consumer
    groups).
Refusals per partition
    UNSTABLE_OFFSET_COMMIT with ``require_stable`` (from version 7 on); UNKNOWN_TOPIC_ID (10).
"""

from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups import committing
from skep.coordination.groups.committing import FetchedOffset
from skep.wire.codec import Body

HAS_SEVERAL_GROUPS = 8
HAS_TOPIC_ID = 10


class _Wanted(NamedTuple):
    group_id: str
    member_id: str | None
    member_epoch: int
    topics: Sequence[Any] | None


async def handle(services: Services, request: Request) -> Body:
    body = request.body
    if request.version < HAS_SEVERAL_GROUPS:
        group = await _fetch(services, request, _Wanted(body.group_id, None, -1, body.topics))
        return {"topics": group["topics"], "error_code": group.get("error_code", ErrorCode.none)}
    wanted = [
        _Wanted(g.group_id, getattr(g, "member_id", None), getattr(g, "member_epoch", -1), g.topics)
        for g in body.groups
    ]
    return {"groups": [await _fetch_or_refuse(services, request, group) for group in wanted]}


async def _fetch_or_refuse(services: Services, request: Request, wanted: _Wanted) -> dict[str, Any]:
    try:
        return await _fetch(services, request, wanted)
    except KafkaError as error:
        return {"group_id": wanted.group_id, "topics": [], "error_code": error.code}


async def _fetch(services: Services, request: Request, wanted: _Wanted) -> dict[str, Any]:
    check_group_id(services, wanted.group_id, may_be_empty=True)
    names, unknown = _topic_names(services, request, wanted)
    require_stable = getattr(request.body, "require_stable", False)
    topics = services.groups.submit(
        wanted.group_id,
        lambda shard: committing.fetch(
            shard, wanted.group_id, wanted.member_id, wanted.member_epoch, names, require_stable=require_stable
        ),
    )
    if isinstance(topics, Awaitable):
        topics = await topics
    answered = [answer for name, offsets in topics if (answer := _topic(services, request, name, offsets)) is not None]
    return {"group_id": wanted.group_id, "topics": [*answered, *unknown], "error_code": ErrorCode.none}


def _topic_names(
    services: Services, request: Request, wanted: _Wanted
) -> tuple[list[tuple[str, Sequence[int]]] | None, list[dict[str, Any]]]:
    """The topics by name, and the answers for ids that nothing has."""
    if wanted.topics is None:
        return None, []
    if request.version < HAS_TOPIC_ID:
        return [(topic.name, topic.partition_indexes) for topic in wanted.topics], []
    known, unknown = [], []
    for topic in wanted.topics:
        record = services.catalog.image.topics_by_id.get(topic.topic_id)
        if record is not None:
            known.append((record.name, topic.partition_indexes))
        else:
            offsets = [FetchedOffset(i, -1, -1, "", ErrorCode.unknown_topic_id) for i in topic.partition_indexes]
            unknown.append({"topic_id": topic.topic_id, "partitions": _partitions(offsets)})
    return known, unknown


def _topic(services: Services, request: Request, name: str, offsets: list[FetchedOffset]) -> dict[str, Any] | None:
    if request.version < HAS_TOPIC_ID:
        return {"name": name, "partitions": _partitions(offsets)}
    record = services.catalog.image.topics.get(name)
    # Deleted, and its offsets about to be: there is no id to name it by.
    return None if record is None else {"topic_id": record.topic_id, "partitions": _partitions(offsets)}


def _partitions(offsets: list[FetchedOffset]) -> list[dict[str, Any]]:
    return [
        {
            "partition_index": offset.partition,
            "committed_offset": offset.offset,
            "committed_leader_epoch": offset.leader_epoch,
            "metadata": offset.metadata,
            "error_code": offset.code,
        }
        for offset in offsets
    ]


def refuse(request: Request, code: ErrorCode) -> Body:
    if request.version < HAS_SEVERAL_GROUPS:
        # Version 1 has no code of its own: there it stands with each partition.
        topics = [
            {
                "name": topic.name,
                "partitions": _partitions([FetchedOffset(i, -1, -1, "", code) for i in topic.partition_indexes]),
            }
            for topic in request.body.topics or ()
        ]
        return {"topics": topics, "error_code": code}
    return {"groups": [{"group_id": group.group_id, "topics": [], "error_code": code} for group in request.body.groups]}
