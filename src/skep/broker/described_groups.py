"""The responses of ConsumerGroupDescribe and ShareGroupDescribe: a snapshot of each group, described in slices."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.authorized_operations import NOT_ASKED, operations_on
from skep.broker.named_items import Ask, ask_each
from skep.broker.permissions import GROUP, TOPIC, check_item, is_visible
from skep.broker.refusals import message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ConsumerGroupDescribeRequest, ShareGroupDescribeRequest

    _DescribeRequest = Request[ConsumerGroupDescribeRequest] | Request[ShareGroupDescribeRequest]

_HIDDEN_TOPICS = "The group has topics that the client is not authorized to describe."
_NOTHING: dict[str, Any] = {"topic_partitions": ()}

Describe = Callable[[Any], Work[dict[str, Any]]]
"""Returns the entry of a snapshot."""


async def describe_groups(services: Services, request: "_DescribeRequest", ask: Ask[str], described: Describe) -> Body:
    """``ask`` returns the snapshot of a group."""

    def ask_if_allowed(group_id: str) -> Any:
        check_item(request, GROUP, group_id)
        return ask(group_id)

    found = await ask_each(services.slicer, request.body.group_ids, ask_if_allowed, _refused)

    def work() -> Work[list[dict[str, Any]]]:
        groups = []
        for group in found:
            if isinstance(group, dict):
                groups.append(group)
            else:
                entry = yield from described(group)
                if request.access.is_limited and not (yield from _is_visible(request, entry)):
                    groups.append(_refusal(entry["group_id"], ErrorCode.topic_authorization_failed, _HIDDEN_TOPICS))
                    continue
                operations = NOT_ASKED
                if request.body.include_authorized_operations:
                    operations = operations_on(request.access, GROUP, entry["group_id"])
                groups.append({**entry, "authorized_operations": operations})
        return groups

    return {"groups": await services.slicer.finish(work())}


def _is_visible(request: "_DescribeRequest", entry: dict[str, Any]) -> Work[bool]:
    """Returns whether the client may know of all topics that members have. As in Kafka, it gets all of them or none."""
    for member in entry["members"]:
        for assignment in (member["assignment"], member.get("target_assignment") or _NOTHING):
            for topic in assignment["topic_partitions"]:
                if not is_visible(request, TOPIC, topic["topic_name"]):
                    return False
        yield
    return True


def _refused(group_id: str, error: KafkaError) -> dict[str, Any]:
    return _refusal(group_id, error.code, message_of(error))


def _refusal(group_id: str, code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "error_code": code,
        "error_message": message,
        "authorized_operations": NOT_ASKED,
    }


def refusals(request: "_DescribeRequest", code: ErrorCode) -> Body:
    return {"groups": LazyArray(request.body.group_ids, lambda group_id: _refusal(group_id, code))}
