"""DescribeTransactions (API 65), version 0.

Behaviour
    Returns for each transactional id its producer, the state of its transaction and the partitions in it. Of a
    transaction that is being completed these are the partitions without a committed marker. An id that is named
    several times is in the response once.

Versions
    0 is the only one.

Refusals, per transactional id
    INVALID_REQUEST for an empty or too long one; no coordinator here; TRANSACTIONAL_ID_NOT_FOUND.
"""

from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.named_items import ask_each
from skep.broker.permissions import TOPIC, TRANSACTIONAL_ID, check_item, visible
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeTransactionsRequest


async def handle(services: Services, request: "Request[DescribeTransactionsRequest]") -> Body:
    def describe(transactional_id: str) -> Any:
        check_item(request, TRANSACTIONAL_ID, transactional_id)
        return services.transactions.describe(transactional_id)

    found = await ask_each(services.slicer, request.body.transactional_ids, describe, _refused)
    if request.access.is_limited:
        found = [await services.slicer.finish(_with_visible_topics(request, state)) for state in found]
    return {"transaction_states": found}


def _with_visible_topics(
    request: "Request[DescribeTransactionsRequest]", state: dict[str, Any]
) -> Work[dict[str, Any]]:
    topics = yield from visible(request, TOPIC, state.get("topics", ()), "topic")
    return {**state, "topics": topics}


def _refused(transactional_id: str, error: KafkaError) -> dict[str, Any]:
    return _unknown(transactional_id, error.code)


def _unknown(transactional_id: str, code: ErrorCode) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "error_code": code}


def refuse(request: "Request[DescribeTransactionsRequest]", code: ErrorCode) -> Body:
    return {"transaction_states": LazyArray(request.body.transactional_ids, lambda wanted: _unknown(wanted, code))}
