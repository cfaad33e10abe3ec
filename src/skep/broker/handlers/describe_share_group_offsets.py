"""DescribeShareGroupOffsets (API 90), versions 0 and 1 (KIP-932).

Behaviour
    Returns where share groups start in partitions: all that the group has state of if ``topics`` is null, otherwise
    those that are named. A partition without state, and a topic that does not exist, has the start offset -1. The
    start of a new partition is -1 too until a member has read from it.

Versions
    1: the lag (KIP-1226): how many records from the start on are not finished. -1 if it is not known.

Refusals
    Per group: INVALID_GROUP_ID; no coordinator here. Per partition: the end of the partition, which the lag needs, is
    not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Work
from skep.broker.cluster.latest_offsets import Found
from skep.broker.permissions import GROUP, TOPIC, allowed, check_item, is_visible
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.share.share_state import UNINITIALIZED, SharePartitionKey, ShareState
from skep.security.access import refusal
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeShareGroupOffsetsRequest

HAS_LAG = 1
_NO_LEADER_EPOCH = 0

Partitions = Mapping[str, Iterable[int]]


async def handle(services: Services, request: "Request[DescribeShareGroupOffsetsRequest]") -> Body:
    groups = []
    for group in request.body.groups:
        try:
            groups.append(await _described(services, request, group))
        except KafkaError as error:
            groups.append(_refused(group.group_id, error.code, message_of(error)))
    return {"groups": groups}


async def _described(
    services: Services,
    request: "Request[DescribeShareGroupOffsetsRequest]",
    group: "DescribeShareGroupOffsetsRequest.Group",
) -> dict[str, Any]:
    check_item(request, GROUP, group.group_id)
    initialized = await services.share_groups.initialized_partitions(group.group_id)
    image = services.catalog.image
    refused: list[dict[str, Any]] = []
    if group.topics is None:
        names = {topic: image.topics_by_id[topic].name for topic in initialized if topic in image.topics_by_id}
        wanted: Partitions = {
            name: sorted(initialized[topic]) for topic, name in names.items() if is_visible(request, TOPIC, name)
        }
    else:
        named = {topic.topic_name: topic.partitions for topic in group.topics}
        wanted = {name: numbers for name, numbers in named.items() if allowed(request, TOPIC, name)}
        refused = [_refused_topic(name, numbers) for name, numbers in named.items() if name not in wanted]
    keys = {
        (name, partition): SharePartitionKey(group.group_id, image.topics[name].topic_id, partition)
        for name, partitions in wanted.items()
        if name in image.topics
        for partition in partitions
        if partition in initialized.get(image.topics[name].topic_id, ())
    }
    summaries = await services.share_groups.summaries(list(keys.values()))
    states = {
        TopicPartition(*place): state for place, key in keys.items() if isinstance(state := summaries[key], ShareState)
    }
    ends: Mapping[TopicPartition, Found] = {}
    if request.version >= HAS_LAG:
        ends = await services.latest_offsets.of(place for place, state in states.items() if _has_lag(state))
    ids = {name: image.topics[name].topic_id for name in wanted if name in image.topics}
    topics = await services.slicer.finish(_topics(wanted, ids, states, ends))
    return {"group_id": group.group_id, "topics": [*topics, *refused]}


def _refused_topic(name: str, numbers: Sequence[int]) -> dict[str, Any]:
    error = refusal(TOPIC)
    code = {"start_offset": UNINITIALIZED, "error_code": error.code, "error_message": message_of(error)}
    partitions = LazyArray(numbers, lambda number: {"partition_index": number, **code})
    return {"topic_name": name, "topic_id": None, "partitions": partitions}


def _has_lag(state: ShareState) -> bool:
    return UNINITIALIZED not in (state.start_offset, state.delivery_complete_count)


def _topics(
    wanted: Partitions,
    ids: Mapping[str, Any],
    states: Mapping[TopicPartition, ShareState],
    ends: Mapping[TopicPartition, Found],
) -> Work[list[dict[str, Any]]]:
    topics = []
    for name, numbers in wanted.items():
        partitions = []
        for number in numbers:
            place = TopicPartition(name, number)
            partitions.append({"partition_index": number, **_partition(states.get(place), ends.get(place))})
            yield
        topics.append({"topic_name": name, "topic_id": ids.get(name), "partitions": partitions})
    return topics


def _partition(state: ShareState | None, end: Found | None) -> dict[str, Any]:
    if state is None:
        return {"start_offset": UNINITIALIZED, "leader_epoch": _NO_LEADER_EPOCH}
    if isinstance(end, ErrorCode):
        return {"error_code": end, "error_message": "the end of the partition is not known"}
    found = {"start_offset": state.start_offset, "leader_epoch": max(state.leader_epoch, _NO_LEADER_EPOCH)}
    if end is not None:
        # The end may have been read before the start moved.
        found["lag"] = max(0, end - state.start_offset - state.delivery_complete_count)
    return found


def _refused(group_id: str, code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {"group_id": group_id, "error_code": code, "error_message": message, "topics": []}


def refuse(request: "Request[DescribeShareGroupOffsetsRequest]", code: ErrorCode) -> Body:
    return {"groups": LazyArray(request.body.groups, lambda group: _refused(group.group_id, code))}
