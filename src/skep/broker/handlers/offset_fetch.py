"""OffsetFetch (API 9), versions 1 to 10.

Behaviour
    What is committed for the partitions asked for, or for all (topics null, from version 2 on). An offset that was
    never committed is -1, also in a group that nobody has heard of. From version 8 on several groups in one request,
    each with a code of its own; from 10 on topics by id. A group that is asked for all of its offsets again is there
    once.

Refusals, per group, in order
    INVALID_GROUP_ID; no coordinator here; UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH (from version 9 on, in consumer
    groups).
Refusals per partition
    UNSTABLE_OFFSET_COMMIT with ``require_stable`` (from version 7 on); UNKNOWN_TOPIC_ID (10).
"""

import functools
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work, run_at_once
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.committed_offsets import Place
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.offsets import offset_operations as committing
from skep.coordination.groups.offsets.offset_operations import FetchedOffsets
from skep.coordination.shard import Outcome
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

HAS_CODE = 2
HAS_SEVERAL_GROUPS = 8
HAS_TOPIC_ID = 10
OFFSETS_AT_ONCE = 64
"""Of a response, made without a pause."""

_Shown = dict[str, Any]


class _Wanted(NamedTuple):
    """One group of a request."""

    group_id: str
    member_id: str | None
    member_epoch: int
    topics: Sequence[Any] | None


async def handle(services: Services, request: Request) -> Body:
    body, fetching = request.body, _Fetching(services, request)
    if request.version < HAS_SEVERAL_GROUPS:
        try:
            group = await fetching.group(_Wanted(body.group_id, None, -1, body.topics))
        except KafkaError as error:
            return await services.slicer.finish(_refused(request, error.code))
        return {"topics": group["topics"], "error_code": group["error_code"]}
    groups = await services.slicer.finish(_each_once(body.groups))
    return {"groups": [await fetching.group_or_refusal(wanted) for wanted in groups]}


def _each_once(groups: Sequence[Any]) -> Work[list[_Wanted]]:
    """The groups of a request. One that is asked for all of its offsets twice, by the same member, is there once."""
    each: list[_Wanted] = []
    seen = set()
    for some in _pieces(groups):
        for group in some:
            wanted = _Wanted(
                group.group_id, getattr(group, "member_id", None), getattr(group, "member_epoch", -1), group.topics
            )
            if wanted.topics is None:
                if wanted in seen:
                    continue
                seen.add(wanted)
            each.append(wanted)
        yield
    return each


class _Fetching:
    """One request. ``_all_of`` has what was made of all offsets of a group, for whoever asks for them again."""

    def __init__(self, services: Services, request: Request) -> None:
        self._services = services
        self._has_topic_id = request.version >= HAS_TOPIC_ID
        self._require_stable = getattr(request.body, "require_stable", False)
        self._all_of: dict[str, list[_Shown]] = {}

    async def group_or_refusal(self, wanted: _Wanted) -> _Shown:
        try:
            return await self.group(wanted)
        except KafkaError as error:
            return {"group_id": wanted.group_id, "topics": [], "error_code": error.code}

    async def group(self, wanted: _Wanted) -> _Shown:
        check_group_id(self._services, wanted.group_id, may_be_empty=True)
        if wanted.topics is None:
            topics = await self._all(wanted)
        else:
            finish = self._services.slicer.finish
            names, places = await finish(self._named(wanted.topics))
            fetched: FetchedOffsets = await self._submit(wanted, self._operation(wanted, places))
            topics = await finish(self._shown(wanted.topics, names, fetched))
        return {"group_id": wanted.group_id, "topics": topics, "error_code": ErrorCode.none}

    async def _all(self, wanted: _Wanted) -> list[_Shown]:
        if wanted.group_id in self._all_of:
            await self._submit(wanted, functools.partial(_checked, wanted))
            return self._all_of[wanted.group_id]
        fetched = await self._submit(wanted, self._operation(wanted, None))
        topics: list[_Shown] = await self._services.slicer.finish(self._shown_all(fetched))
        self._all_of[wanted.group_id] = topics
        return topics

    def _operation(self, wanted: _Wanted, places: Sequence[Place] | None) -> Any:
        return lambda shard: committing.fetch(
            shard, wanted.group_id, wanted.member_id, wanted.member_epoch, places, require_stable=self._require_stable
        )

    async def _submit(self, wanted: _Wanted, operation: Any) -> Any:
        response = await self._services.slicer.finish(self._submitted(wanted.group_id, operation))
        return await response if isinstance(response, Awaitable) else response

    def _submitted(self, group_id: str, operation: Any) -> Work[Any]:
        yield
        return self._services.groups.submit(group_id, operation)

    # What the client names, and what it is told, in slices.

    def _named(self, topics: Sequence[Any]) -> Work[tuple[list[str | None], list[Place]]]:
        """The name of each topic, None for an id that nothing has, and the partitions of those that have one."""
        names: list[str | None] = []
        places: list[Place] = []
        for topic in topics:
            name = self._name(topic.topic_id) if self._has_topic_id else topic.name
            names.append(name)
            if name is not None:
                for some in _pieces(topic.partition_indexes):
                    places += [(name, index) for index in some]
                    yield
        return names, places

    def _name(self, topic_id: UUID) -> str | None:
        record = self._services.catalog.image.topics_by_id.get(topic_id)
        return None if record is None else record.name

    def _shown(self, topics: Sequence[Any], names: list[str | None], fetched: FetchedOffsets) -> Work[list[_Shown]]:
        shown = []
        for topic, name in zip(topics, names, strict=True):
            partitions: list[_Shown] = []
            for some in _pieces(topic.partition_indexes):
                if name is None:
                    partitions += [_offset(index, -1, -1, "", ErrorCode.unknown_topic_id) for index in some]
                else:
                    partitions += [_offset(index, *fetched.offset(name, index)) for index in some]
                yield
            key = {"topic_id": topic.topic_id} if self._has_topic_id else {"name": name}
            shown.append({**key, "partitions": partitions})
        return shown

    def _shown_all(self, fetched: FetchedOffsets) -> Work[list[_Shown]]:
        partitions: dict[str, list[_Shown]] = {}
        for some in _pieces(list(fetched.committed)):
            for topic, index in some:
                partitions.setdefault(topic, []).append(_offset(index, *fetched.offset(topic, index)))
            yield
        if not self._has_topic_id:
            return [{"name": name, "partitions": offsets} for name, offsets in partitions.items()]
        # Of one that is deleted the offsets are about to be: there is no id to name it by.
        existing = self._services.catalog.image.topics
        return [
            {"topic_id": existing[name].topic_id, "partitions": offsets}
            for name, offsets in partitions.items()
            if name in existing
        ]


def _checked(wanted: _Wanted, shard: GroupShard) -> Outcome:
    committing.check_fetch(shard, wanted.group_id, wanted.member_id, wanted.member_epoch)
    return Outcome()


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), OFFSETS_AT_ONCE):
        yield values[start : start + OFFSETS_AT_ONCE]


def _offset(index: int, offset: int, leader_epoch: int, metadata: str, code: ErrorCode) -> _Shown:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "metadata": metadata,
        "error_code": code,
    }


def refuse(request: Request, code: ErrorCode) -> Body:
    if request.version < HAS_SEVERAL_GROUPS:
        return run_at_once(_refused(request, code))
    return {"groups": LazyArray(request.body.groups, lambda group: _refused_group(group, code))}


def _refused_group(group: Any, code: ErrorCode) -> _Shown:
    return {"group_id": group.group_id, "topics": [], "error_code": code}


def _refused(request: Request, code: ErrorCode) -> Work[Body]:
    """Version 1 has no code of its own: there it stands with each partition."""
    topics = []
    for topic in request.body.topics or () if request.version < HAS_CODE else ():
        partitions: list[_Shown] = []
        for some in _pieces(topic.partition_indexes):
            partitions += [_offset(index, -1, -1, "", code) for index in some]
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics, "error_code": code}
