"""OffsetCommit (API 8), versions 2 to 10.

Behaviour
    Appends one offset per (group, topic, partition) to ``__consumer_offsets``. The response is sent when they are
    committed. Very many offsets are appended in several batches: if the committer stops being a member in between, the
    first offsets are committed and the others refused.

Versions
    2 is the first served; it has ``retention_time_ms``.
    3: ``throttle_time_ms``.
    4 changes nothing here (quotas).
    5: without ``retention_time_ms`` (KIP-211).
    6: ``committed_leader_epoch`` (KIP-320).
    7: ``group_instance_id`` (KIP-345).
    8 is flexible.
    9: members of consumer groups commit with their epoch; GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848).
    10: topic ids in place of topic names, and UNKNOWN_TOPIC_ID (KIP-848).

Refusals of all partitions, in order
    INVALID_GROUP_ID; no coordinator here (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE);
    GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION below version 9) for a member of a group that does not exist; for the
    committer UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH, REBALANCE_IN_PROGRESS.
Refusals per partition
    TOPIC_AUTHORIZATION_FAILED; UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID); OFFSET_METADATA_TOO_LARGE;
    POLICY_VIOLATION for a partition without an offset so far, past ``skep.max.group.offsets`` or
    ``skep.max.groups.memory.bytes``.

Left out
    ``retention_time_ms`` (2 to 4) is read and ignored: the retention of offsets is a broker option.
"""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_TOPIC_ID
from skep.base.loop.slicer import Work, run_at_once
from skep.broker.permissions import TOPIC, allowed
from skep.broker.request import Parts, Request
from skep.broker.services import Services
from skep.coordination.groups.offsets.offset_operations import OFFSETS_AT_ONCE, AnyOffset, Codes, Committer
from skep.wire.apis import OFFSET_COMMIT
from skep.wire.codec import Body, encode_response
from skep.wire.lazy_array import LazyArray
from skep.wire.primitives import INT32

if TYPE_CHECKING:
    from skep.wire.entities.request_types import OffsetCommitRequest, TxnOffsetCommitRequest

    _AnyCommit = Request[OffsetCommitRequest] | Request[TxnOffsetCommitRequest]
    _Topic = OffsetCommitRequest.Topic | TxnOffsetCommitRequest.Topic
    _Partition = OffsetCommitRequest.Partition | TxnOffsetCommitRequest.Partition

HAS_TOPIC_ID = 10
OFFSETS_A_STEP = 100
"""Offsets visited without a pause."""
MAX_CACHED_OFFSETS = 100
"""Offsets of a request whose response is cached."""

_Shape = tuple[tuple[str | UUID | None, tuple[int, ...]], ...]


def handle(services: Services, request: "Request[OffsetCommitRequest]") -> Parts | Body | Awaitable[Body]:
    body = request.body
    if is_large(body.topics):
        services.groups.check_id(body.group_id, may_be_empty=True)
        return commit_in_pieces(services, request, functools.partial(_commit, services, request))
    refused, offsets = wanted_offsets(services, request)
    if is_refused(refused, offsets):
        return response(request, refused, [])
    codes: Any = _commit(services, request, offsets)
    if type(codes) is not list:
        return _response_later(request, refused, codes)
    if len(codes) <= MAX_CACHED_OFFSETS and not any(codes) and not any(refused):
        return (INT32.pack(request.correlation_id) + _all_committed(request.version, _shape(body.topics)),)
    return response(request, refused, codes)


def _commit(
    services: Services, request: "Request[OffsetCommitRequest]", offsets: list[AnyOffset]
) -> Codes | Awaitable[Codes]:
    body, version = request.body, request.version
    committer = Committer(body.member_id, getattr(body, "group_instance_id", None), body.generation_id_or_member_epoch)
    return services.groups.commit_offsets(body.group_id, committer, offsets, version)


def _shape(topics: "Sequence[_Topic]") -> _Shape:
    return tuple((_name(topic)[1], tuple([wanted.partition_index for wanted in topic.partitions])) for topic in topics)


@functools.lru_cache(1024)
def _all_committed(version: int, shape: _Shape) -> bytes:
    """Returns the response without its correlation id. A consumer commits the same partitions again and again."""
    field = "topic_id" if version >= HAS_TOPIC_ID else "name"
    topics = [
        {field: name, "partitions": [{"partition_index": index} for index in partitions]} for name, partitions in shape
    ]
    return encode_response(OFFSET_COMMIT.key, version, 0, {"topics": topics})[INT32.size :]


def wanted_offsets(services: Services, request: "_AnyCommit") -> tuple[list[ErrorCode], list[AnyOffset]]:
    """Returns a code for each topic of the request, and the offsets of those with the code NONE."""
    refused: list[ErrorCode] = []
    offsets: list[AnyOffset] = []
    topics: Sequence[_Topic] = request.body.topics
    for topic in topics:
        code, name = _code_and_name(services, request, topic)
        refused.append(code)
        if not code:
            offsets += _offsets(name, topic.partitions)
    return refused, offsets


def is_refused(refused: list[ErrorCode], offsets: list[AnyOffset]) -> bool:
    """Returns whether nothing is left to commit that the client may: the coordinator is not asked then."""
    return not offsets and ErrorCode.topic_authorization_failed in refused


def _code_and_name(services: Services, request: "_AnyCommit", topic: "_Topic") -> tuple[ErrorCode, str]:
    image = services.catalog.image
    if hasattr(topic, "topic_id"):
        record = image.topics_by_id.get(topic.topic_id or NO_TOPIC_ID)
        if record is None:
            return ErrorCode.unknown_topic_id, ""
        name: str = record.name
    else:
        name = topic.name
    if request.access.is_limited and not allowed(request, TOPIC, name):
        return ErrorCode.topic_authorization_failed, name
    return (ErrorCode.none if name in image.topics else ErrorCode.unknown_topic_or_partition), name


def _offsets(topic: str, partitions: "Sequence[_Partition]") -> list[AnyOffset]:
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


async def _response_later(
    request: "Request[OffsetCommitRequest]", refused: list[ErrorCode], codes: Awaitable[Codes]
) -> Body:
    return response(request, refused, await codes)


def response(request: "_AnyCommit", refused: list[ErrorCode], codes: Codes) -> Body:
    """Returns the body with ``codes`` for the partitions of topics that were not refused as a whole."""
    return run_at_once(_response(request, refused, codes))


def _response(request: "_AnyCommit", refused: list[ErrorCode], codes: Codes) -> Work[Body]:
    left = iter(codes)
    wanted_topics: Sequence[_Topic] = request.body.topics
    topics = []
    for topic, code in zip(wanted_topics, refused, strict=True):
        field, name = _name(topic)
        partitions: list[dict[str, Any]] = []
        for wanted in topic.partitions:
            partitions.append({"partition_index": wanted.partition_index, "error_code": code if code else next(left)})
            if not len(partitions) % OFFSETS_A_STEP:
                yield
        topics.append({field: name, "partitions": partitions})
    return {"topics": topics}


# Requests with more offsets than one operation may write.


def is_large(topics: "Sequence[_Topic]") -> bool:
    """Whether a request is too long for one operation, by its partitions or by topics without partitions."""
    count = len(topics)
    if count > 1:
        count += sum([len(topic.partitions) for topic in topics])
    elif count:
        count = len(topics[0].partitions)
    return count > OFFSETS_AT_ONCE


def _wanted_offsets(services: Services, request: "_AnyCommit") -> Work[tuple[list[ErrorCode], list[AnyOffset]]]:
    refused: list[ErrorCode] = []
    offsets: list[AnyOffset] = []
    topics: Sequence[_Topic] = request.body.topics
    for topic in topics:
        code, name = _code_and_name(services, request, topic)
        refused.append(code)
        yield
        if not code:
            for start in range(0, len(topic.partitions), OFFSETS_A_STEP):
                offsets += _offsets(name, topic.partitions[start : start + OFFSETS_A_STEP])
                yield
    return refused, offsets


async def commit_in_pieces(
    services: Services,
    request: "_AnyCommit",
    commit: Callable[[list[AnyOffset]], Codes | Awaitable[Codes]],
    *,
    code_for_client: Callable[[ErrorCode], ErrorCode] = lambda code: code,
) -> Body:
    """Commits as several requests in a row would. When a piece is refused, so are all that follow.

    ``code_for_client`` replaces a code that clients of the version do not know.
    """
    finish = services.slicer.finish
    refused, offsets = await finish(_wanted_offsets(services, request))
    codes: Codes = []
    if is_refused(refused, offsets):
        return await finish(_response(request, refused, codes))
    while len(codes) < len(offsets):
        piece = offsets[len(codes) : len(codes) + OFFSETS_AT_ONCE]
        try:
            committed = await finish(_commit_piece(commit, piece))
            codes += await committed if isinstance(committed, Awaitable) else committed
        except KafkaError as error:
            codes += [code_for_client(error.code)] * (len(offsets) - len(codes))
    return await finish(_response(request, refused, codes))


def _commit_piece(
    commit: Callable[[list[AnyOffset]], Codes | Awaitable[Codes]], piece: list[AnyOffset]
) -> Work[Codes | Awaitable[Codes]]:
    yield
    return commit(piece)


def _name(topic: "_Topic") -> tuple[str, str | UUID | None]:
    """Returns the field that identifies a topic of the request, and its value."""
    return ("topic_id", topic.topic_id) if hasattr(topic, "topic_id") else ("name", topic.name)


def refuse(request: "_AnyCommit", code: ErrorCode) -> Body:
    def partition(wanted: "_Partition") -> dict[str, Any]:
        return {"partition_index": wanted.partition_index, "error_code": code}

    def topic(named: "_Topic") -> dict[str, Any]:
        partitions: Sequence[_Partition] = named.partitions
        return {**dict([_name(named)]), "partitions": LazyArray(partitions, partition)}

    topics: Sequence[_Topic] = request.body.topics
    return {"topics": LazyArray(topics, topic)}
