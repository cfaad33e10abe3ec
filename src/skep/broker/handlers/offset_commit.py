"""OffsetCommit (API 8), versions 2 to 10.

Behaviour
    One offset per (group, topic, partition) is appended to ``__consumer_offsets``. The answer goes out when that is
    committed. Versions from 10 on name topics by id. Very many offsets are appended in several batches: when the
    committer is no longer a member in between, the first ones are committed and the others refused.

Refusals of all partitions, in order
    INVALID_GROUP_ID; no coordinator here (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE);
    GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION below version 9) for a member of a group that is not there; what the group
    says of who commits: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH,
    REBALANCE_IN_PROGRESS.
Refusals per partition
    UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID); OFFSET_METADATA_TOO_LARGE; POLICY_VIOLATION for a partition that the
    group has no offset for yet, past ``skep.max.group.offsets`` or ``skep.max.groups.memory.bytes``.

Left out
    ``retention_time_ms`` (2 to 4) is read and ignored: how long offsets stay is a broker option.
"""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work, run_at_once
from skep.broker.group_ids import check_group_id
from skep.broker.request import Parts, Request
from skep.broker.services import Services
from skep.coordination.groups.offsets import offset_operations as committing
from skep.coordination.groups.offsets.offset_operations import OFFSETS_AT_ONCE, AnyOffset, Codes, Committer
from skep.wire.apis import OFFSET_COMMIT
from skep.wire.codec import Body, encode_response
from skep.wire.lazy_array import LazyArray
from skep.wire.primitives import INT32

HAS_TOPIC_ID = 10
OFFSETS_A_STEP = 100
"""Looked at without a pause."""
MOST_REMEMBERED = 100
"""Offsets of a request whose answer is remembered."""

_Shape = tuple[tuple[str | UUID, tuple[int, ...]], ...]


def handle(services: Services, request: Request) -> Parts | Body | Awaitable[Body]:
    body = request.body
    check_group_id(services, body.group_id, may_be_empty=True)
    has_topic_id = request.version >= HAS_TOPIC_ID
    if is_large(body.topics):
        return commit_in_pieces(
            services, request, functools.partial(_commit, services, request), has_topic_id=has_topic_id
        )
    known, offsets = wanted_offsets(services, body.topics, has_topic_id=has_topic_id)
    codes: Any = _commit(services, request, offsets)
    if type(codes) is not list:
        return _answer_later(request, known, codes)
    if len(codes) <= MOST_REMEMBERED and not any(codes) and all(known):
        return (INT32.pack(request.correlation_id) + _all_committed(request.version, _shape(body.topics)),)
    return answer(request, known, codes)


def _commit(services: Services, request: Request, offsets: list[AnyOffset]) -> Codes | Awaitable[Codes]:
    body, version = request.body, request.version
    committer = Committer(body.member_id, getattr(body, "group_instance_id", None), body.generation_id_or_member_epoch)
    codes: Codes | Awaitable[Codes] = services.groups.submit(
        body.group_id, lambda shard: committing.commit(shard, body.group_id, committer, offsets, version)
    )
    return codes


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
        if record is not None:
            offsets += _offsets(record.name, topic.partitions)
    return known, offsets


def _offsets(topic: str, partitions: Sequence[Any]) -> list[AnyOffset]:
    return [
        (
            topic,
            wanted.partition_index,
            wanted.committed_offset,
            getattr(wanted, "committed_leader_epoch", -1),
            wanted.committed_metadata or "",
        )
        for wanted in partitions
    ]


async def _answer_later(request: Request, known: list[bool], codes: Awaitable[Codes]) -> Body:
    return answer(request, known, await codes)


def answer(request: Request, known: list[bool], codes: Codes) -> Body:
    """The codes of the offsets of known topics in their places, and the code for an unknown topic in the others."""
    return run_at_once(_answer(request, known, codes))


def _answer(request: Request, known: list[bool], codes: Codes) -> Work[Body]:
    left = iter(codes)
    topics = []
    for topic, is_known in zip(request.body.topics, known, strict=True):
        field, name = _name(topic)
        unknown = ErrorCode.unknown_topic_id if field == "topic_id" else ErrorCode.unknown_topic_or_partition
        partitions: list[dict[str, Any]] = []
        for wanted in topic.partitions:
            partitions.append(
                {"partition_index": wanted.partition_index, "error_code": next(left) if is_known else unknown}
            )
            if not len(partitions) % OFFSETS_A_STEP:
                yield
        topics.append({field: name, "partitions": partitions})
    return {"topics": topics}


# Requests with more offsets than one operation should write.


def is_large(topics: Any) -> bool:
    """Also one of very many topics without partitions."""
    count = len(topics)
    if count > 1:
        count += sum([len(topic.partitions) for topic in topics])
    elif count:
        count = len(topics[0].partitions)
    return count > OFFSETS_AT_ONCE


def _wanted_offsets(services: Services, topics: Any, *, has_topic_id: bool) -> Work[tuple[list[bool], list[AnyOffset]]]:
    image = services.catalog.image
    known: list[bool] = []
    offsets: list[AnyOffset] = []
    for topic in topics:
        record = image.topics_by_id.get(topic.topic_id) if has_topic_id else image.topics.get(topic.name)
        known.append(record is not None)
        yield
        if record is not None:
            for start in range(0, len(topic.partitions), OFFSETS_A_STEP):
                offsets += _offsets(record.name, topic.partitions[start : start + OFFSETS_A_STEP])
                yield
    return known, offsets


async def commit_in_pieces(
    services: Services,
    request: Request,
    commit: Callable[[list[AnyOffset]], Codes | Awaitable[Codes]],
    *,
    has_topic_id: bool,
    told: Callable[[ErrorCode], ErrorCode] = lambda code: code,
) -> Body:
    """As if the offsets had come in several requests in a row. What is refused is refused for all that follow, too.

    ``told`` gives the code that the client knows.
    """
    finish = services.slicer.finish
    known, offsets = await finish(_wanted_offsets(services, request.body.topics, has_topic_id=has_topic_id))
    codes: Codes = []
    while len(codes) < len(offsets):
        piece = offsets[len(codes) : len(codes) + OFFSETS_AT_ONCE]
        try:
            committed = await finish(_committed(commit, piece))
            codes += await committed if isinstance(committed, Awaitable) else committed
        except KafkaError as error:
            codes += [told(error.code)] * (len(offsets) - len(codes))
    return await finish(_answer(request, known, codes))


def _committed(
    commit: Callable[[list[AnyOffset]], Codes | Awaitable[Codes]], piece: list[AnyOffset]
) -> Work[Codes | Awaitable[Codes]]:
    yield
    return commit(piece)


def _name(topic: Any) -> tuple[str, str | UUID]:
    """The field that names a topic of the request, and what is in it."""
    return ("topic_id", topic.topic_id) if hasattr(topic, "topic_id") else ("name", topic.name)


def refuse(request: Request, code: ErrorCode) -> Body:
    def partition(wanted: Any) -> dict[str, Any]:
        return {"partition_index": wanted.partition_index, "error_code": code}

    def topic(named: Any) -> dict[str, Any]:
        return {**dict([_name(named)]), "partitions": LazyArray(named.partitions, partition)}

    return {"topics": LazyArray(request.body.topics, topic)}
