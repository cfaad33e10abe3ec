"""OffsetCommit (API 8), versions 2 to 10.

Behaviour
    One offset per (group, topic, partition) is appended to ``__consumer_offsets``. The answer goes out when that is
    committed. Versions from 10 on name topics by id.

Refusals of all partitions, in order
    INVALID_GROUP_ID; no coordinator here (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE);
    GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION below version 9) for a member of a group that is not there; what the group
    says of who commits: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH,
    REBALANCE_IN_PROGRESS.
Refusals per partition
    UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID); OFFSET_METADATA_TOO_LARGE.

Left out
    ``retention_time_ms`` (2 to 4) is read and ignored: how long offsets stay is a broker option.
"""

import functools
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from skep.base.errors import ErrorCode
from skep.broker.group_ids import check_group_id
from skep.broker.request import Parts, Request
from skep.broker.services import Services
from skep.coordination.groups import committing
from skep.coordination.groups.committing import AnyOffset, Committer
from skep.wire.apis import OFFSET_COMMIT
from skep.wire.codec import Body, encode_response
from skep.wire.primitives import INT32

HAS_TOPIC_ID = 10
MOST_REMEMBERED = 100
"""Offsets of a request whose answer is remembered."""

_Shape = tuple[tuple[str | UUID, tuple[int, ...]], ...]


def handle(services: Services, request: Request) -> Parts | Body | Awaitable[Body]:
    body = request.body
    check_group_id(services, body.group_id, may_be_empty=True)
    committer = Committer(body.member_id, getattr(body, "group_instance_id", None), body.generation_id_or_member_epoch)
    known, offsets = wanted_offsets(services, body.topics, has_topic_id=request.version >= HAS_TOPIC_ID)
    codes = services.groups.submit(
        body.group_id, lambda shard: committing.commit(shard, body.group_id, committer, offsets, request.version)
    )
    if type(codes) is not list:
        return _answer_later(request, known, codes)
    if len(codes) <= MOST_REMEMBERED and not any(codes) and all(known):
        return (INT32.pack(request.correlation_id) + _all_committed(request.version, _shape(body.topics)),)
    return answer(request, known, codes)


def _shape(topics: Any) -> _Shape:
    return tuple((_name(topic)[1], tuple([wanted.partition_index for wanted in topic.partitions])) for topic in topics)


@functools.lru_cache(1024)
def _all_committed(version: int, shape: _Shape) -> bytes:
    """The answer behind its correlation id. A consumer commits the same partitions again and again."""
    field = "topic_id" if version >= HAS_TOPIC_ID else "name"
    topics = [
        {field: name, "partitions": [{"partition_index": index} for index in partitions]} for name, partitions in shape
    ]
    return encode_response(OFFSET_COMMIT.key, version, 0, {"topics": topics})[INT32.size :]


def wanted_offsets(services: Services, topics: Any, *, has_topic_id: bool) -> tuple[list[bool], list[AnyOffset]]:
    """Of each topic of the request whether it exists, and the offsets of those that do."""
    image = services.catalog.image
    known: list[bool] = []
    offsets: list[AnyOffset] = []
    for topic in topics:
        record = image.topics_by_id.get(topic.topic_id) if has_topic_id else image.topics.get(topic.name)
        known.append(record is not None)
        if record is None:
            continue
        name = record.name
        for wanted in topic.partitions:
            offsets.append(
                (
                    name,
                    wanted.partition_index,
                    wanted.committed_offset,
                    getattr(wanted, "committed_leader_epoch", -1),
                    wanted.committed_metadata or "",
                )
            )
    return known, offsets


async def _answer_later(request: Request, known: list[bool], codes: Awaitable[list[ErrorCode]]) -> Body:
    return answer(request, known, await codes)


def answer(request: Request, known: list[bool], codes: list[ErrorCode]) -> Body:
    """The codes of the offsets of known topics in their places, and the code for an unknown topic in the others."""
    left = iter(codes)
    topics = []
    for topic, is_known in zip(request.body.topics, known, strict=True):
        field, name = _name(topic)
        unknown = ErrorCode.unknown_topic_id if field == "topic_id" else ErrorCode.unknown_topic_or_partition
        partitions = [
            {"partition_index": wanted.partition_index, "error_code": next(left) if is_known else unknown}
            for wanted in topic.partitions
        ]
        topics.append({field: name, "partitions": partitions})
    return {"topics": topics}


def _name(topic: Any) -> tuple[str, str | UUID]:
    """The field that names a topic of the request, and what is in it."""
    return ("topic_id", topic.topic_id) if hasattr(topic, "topic_id") else ("name", topic.name)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {
        "topics": [
            {
                **dict([_name(topic)]),
                "partitions": [
                    {"partition_index": wanted.partition_index, "error_code": code} for wanted in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
