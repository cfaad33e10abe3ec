"""OffsetFetch (API 9), versions 1 to 10.

Behaviour
    Returns the committed offsets of the requested partitions, or of all. An offset that was never committed is -1, also
    in a group that does not exist. A group whose offsets are all requested several times is in the response once.

Versions
    1 is the first served.
    2: null topics request all offsets, and the response has a code of its own (KIP-88).
    3: ``throttle_time_ms``.
    4 changes nothing here (quotas).
    5: ``committed_leader_epoch`` (KIP-320).
    6 is flexible.
    7: ``require_stable``, and UNSTABLE_OFFSET_COMMIT (KIP-447).
    8: several groups, each with a code of its own (KIP-709).
    9: the member's id and epoch; UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH (KIP-848).
    10: topic ids in place of topic names, and UNKNOWN_TOPIC_ID (KIP-848).

Refusals, per group, in order
    GROUP_AUTHORIZATION_FAILED; INVALID_GROUP_ID; no coordinator here; UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH (from
    version 9 on, in consumer groups).
Refusals per partition
    TOPIC_AUTHORIZATION_FAILED; UNSTABLE_OFFSET_COMMIT with ``require_stable`` (from version 7 on); UNKNOWN_TOPIC_ID
    (10).
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_TOPIC_ID
from skep.base.loop.slicer import Work, run_at_once
from skep.broker.permissions import GROUP, TOPIC, allowed, check_item, is_visible
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.groups.committed_offsets import Place
from skep.coordination.groups.offsets.offset_operations import FetchedOffsets
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import OffsetFetchRequest

    _Topic = OffsetFetchRequest.Topic | OffsetFetchRequest.Topics

HAS_CODE = 2
HAS_SEVERAL_GROUPS = 8
HAS_TOPIC_ID = 10
OFFSETS_AT_ONCE = 64
"""Offsets of a response made without a pause."""

_Entry = dict[str, Any]
V = TypeVar("V")


class _Wanted(NamedTuple):
    """One group of a request."""

    group_id: str
    member_id: str | None
    member_epoch: int
    topics: "Sequence[_Topic] | None"


async def handle(services: Services, request: "Request[OffsetFetchRequest]") -> Body:
    body, fetching = request.body, _Fetching(services, request)
    if request.version < HAS_SEVERAL_GROUPS:
        try:
            group = await fetching.group(_Wanted(body.group_id, None, -1, body.topics))
        except KafkaError as error:
            return await services.slicer.finish(_refused(request, error.code))
        return {"topics": group["topics"], "error_code": group["error_code"]}
    groups = await services.slicer.finish(_each_once(body.groups))
    return {"groups": [await fetching.group_or_refusal(wanted) for wanted in groups]}


def _each_once(groups: "Sequence[OffsetFetchRequest.Group]") -> Work[list[_Wanted]]:
    """Returns the groups of a request; one whose offsets are all requested again by the same member only once."""
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
    """One request. ``_all_of`` has the response for all offsets of a group, in case another member requests it too."""

    def __init__(self, services: Services, request: "Request[OffsetFetchRequest]") -> None:
        self._services = services
        self._request = request
        self._has_topic_id = request.version >= HAS_TOPIC_ID
        self._require_stable = getattr(request.body, "require_stable", False)
        self._all_of: dict[str, list[_Entry]] = {}

    async def group_or_refusal(self, wanted: _Wanted) -> _Entry:
        try:
            return await self.group(wanted)
        except KafkaError as error:
            return {"group_id": wanted.group_id, "topics": [], "error_code": error.code}

    async def group(self, wanted: _Wanted) -> _Entry:
        check_item(self._request, GROUP, wanted.group_id)
        self._services.groups.check_id(wanted.group_id, may_be_empty=True)
        if wanted.topics is None:
            topics = await self._all(wanted)
        else:
            finish = self._services.slicer.finish
            names, places = await finish(self._named(wanted.topics))
            fetched = await self._fetch(wanted, places)
            topics = await finish(self._entries(wanted.topics, names, fetched))
        return {"group_id": wanted.group_id, "topics": topics, "error_code": ErrorCode.none}

    async def _all(self, wanted: _Wanted) -> list[_Entry]:
        if wanted.group_id in self._all_of:
            await self._in_turn(
                lambda: self._services.groups.check_offset_fetch(wanted.group_id, wanted.member_id, wanted.member_epoch)
            )
            return self._all_of[wanted.group_id]
        fetched = await self._fetch(wanted, None)
        topics: list[_Entry] = await self._services.slicer.finish(self._all_entries(fetched))
        self._all_of[wanted.group_id] = topics
        return topics

    async def _fetch(self, wanted: _Wanted, places: Sequence[Place] | None) -> FetchedOffsets:
        fetched: FetchedOffsets = await self._in_turn(
            lambda: self._services.groups.fetch_offsets(
                wanted.group_id, wanted.member_id, wanted.member_epoch, places, require_stable=self._require_stable
            )
        )
        return fetched

    async def _in_turn(self, call: Callable[[], Any]) -> Any:
        """Calls the coordinator within the slices of the request: it may name very many groups."""
        response = await self._services.slicer.finish(_called(call))
        return await response if isinstance(response, Awaitable) else response

    # The request and the response, in slices.

    def _named(self, topics: "Sequence[_Topic]") -> Work[tuple[list[str | ErrorCode], list[Place]]]:
        """Returns the name or the code of each topic, and the partitions of those with a name."""
        names: list[str | ErrorCode] = []
        places: list[Place] = []
        for topic in topics:
            name = self._name_or_code(topic)
            names.append(name)
            if isinstance(name, str):
                for some in _pieces(topic.partition_indexes):
                    places += [(name, index) for index in some]
                    yield
        return names, places

    def _name_or_code(self, topic: "_Topic") -> str | ErrorCode:
        if hasattr(topic, "topic_id"):
            record = self._services.catalog.image.topics_by_id.get(topic.topic_id or NO_TOPIC_ID)
            if record is None:
                return ErrorCode.unknown_topic_id
            name: str = record.name
        else:
            name = topic.name
        return name if allowed(self._request, TOPIC, name) else ErrorCode.topic_authorization_failed

    def _entries(
        self, topics: "Sequence[_Topic]", names: list[str | ErrorCode], fetched: FetchedOffsets
    ) -> Work[list[_Entry]]:
        entries = []
        for topic, name in zip(topics, names, strict=True):
            partitions: list[_Entry] = []
            for some in _pieces(topic.partition_indexes):
                if isinstance(name, ErrorCode):
                    partitions += [_offset(index, -1, -1, "", name) for index in some]
                else:
                    partitions += [_offset(index, *fetched.offset(name, index)) for index in some]
                yield
            key = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}
            entries.append({**key, "partitions": partitions})
        return entries

    def _all_entries(self, fetched: FetchedOffsets) -> Work[list[_Entry]]:
        partitions: dict[str, list[_Entry]] = {}
        for some in _pieces(list(fetched.committed)):
            for topic, index in some:
                if is_visible(self._request, TOPIC, topic):
                    partitions.setdefault(topic, []).append(_offset(index, *fetched.offset(topic, index)))
            yield
        if not self._has_topic_id:
            return [{"name": name, "partitions": offsets} for name, offsets in partitions.items()]
        # A deleted topic has no id; its offsets are about to be deleted.
        existing = self._services.catalog.image.topics
        return [
            {"topic_id": existing[name].topic_id, "partitions": offsets}
            for name, offsets in partitions.items()
            if name in existing
        ]


def _called(call: Callable[[], Any]) -> Work[Any]:
    yield
    return call()


def _pieces(values: Sequence[V]) -> Iterator[Sequence[V]]:
    for start in range(0, len(values), OFFSETS_AT_ONCE):
        yield values[start : start + OFFSETS_AT_ONCE]


def _offset(index: int, offset: int, leader_epoch: int, metadata: str, code: ErrorCode) -> _Entry:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "metadata": metadata,
        "error_code": code,
    }


def refuse(request: "Request[OffsetFetchRequest]", code: ErrorCode) -> Body:
    if request.version < HAS_SEVERAL_GROUPS:
        return run_at_once(_refused(request, code))
    return {"groups": LazyArray(request.body.groups, lambda group: _refused_group(group, code))}


def _refused_group(group: "OffsetFetchRequest.Group", code: ErrorCode) -> _Entry:
    return {"group_id": group.group_id, "topics": [], "error_code": code}


def _refused(request: "Request[OffsetFetchRequest]", code: ErrorCode) -> Work[Body]:
    """Version 1 has no code for the response: each partition has it."""
    topics = []
    for topic in request.body.topics or () if request.version < HAS_CODE else ():
        partitions: list[_Entry] = []
        for some in _pieces(topic.partition_indexes):
            partitions += [_offset(index, -1, -1, "", code) for index in some]
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics, "error_code": code}
