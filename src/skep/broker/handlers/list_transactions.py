"""ListTransactions (API 66), versions 0 to 1.

Behaviour
    Returns the transactional ids that this broker coordinates and the client may describe, filtered by state, by
    producer id and by the time for which the transaction has been open. State names that do not exist are named in the
    response.

Versions
    1: the filter by duration (KIP-994).

Refusals
    COORDINATOR_LOAD_IN_PROGRESS while a shard of this broker is not loaded.

Left out
    Version 2, which filters the ids with a regular expression.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.permissions import TRANSACTIONAL_ID, visible
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.transactions.transaction_listing import ListFilter
from skep.coordination.transactions.transaction_state import BY_LABEL
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ListTransactionsRequest


async def handle(services: Services, request: "Request[ListTransactionsRequest]") -> Body:
    body = request.body
    wanted = ListFilter(
        frozenset(BY_LABEL[name] for name in body.state_filters if name in BY_LABEL) if body.state_filters else None,
        frozenset(body.producer_id_filters),
        getattr(body, "duration_filter", -1),
    )
    found = await services.transactions.list(wanted)
    return {
        "transaction_states": await services.slicer.finish(
            visible(request, TRANSACTIONAL_ID, found, "transactional_id")
        ),
        "unknown_state_filters": [name for name in body.state_filters if name not in BY_LABEL],
    }


def refuse(request: "Request[ListTransactionsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "transaction_states": [], "unknown_state_filters": []}
