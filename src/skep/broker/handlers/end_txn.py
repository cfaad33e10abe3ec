"""EndTxn (API 26), versions 0 to 5.

Behaviour
    Commits or aborts the producer's transaction. The response is sent when the decision is committed. The markers are
    written right after it, and until all are written the next transaction cannot begin (CONCURRENT_TRANSACTIONS). A
    repeated request with the same result gets the same response.

    From version 5 on the transaction is one of v2 (KIP-890): the response has the epoch for the producer's next
    transaction, or another producer id when its epochs are exhausted. The last epoch is fenced everywhere. A producer
    may abort although it has begun nothing.

Versions
    1 changes nothing here (quotas).
    2: PRODUCER_FENCED.
    3 is flexible.
    4: TRANSACTION_ABORTABLE (KIP-890), which is not used here.
    5: the producer id and epoch of the next transaction.

Refusals, in order
    INVALID_REQUEST for an empty or too long transactional id; no coordinator here; INVALID_PRODUCER_ID_MAPPING;
    PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); INVALID_TXN_STATE when no transaction was begun or the
    opposite was decided; CONCURRENT_TRANSACTIONS while the markers are being written.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import EndTxnRequest

HAS_PRODUCER_FENCED = 2
HAS_NEXT_PRODUCER = 5
_ENDED: Body = {"error_code": ErrorCode.none}


def handle(services: Services, request: "Request[EndTxnRequest]") -> Body | Awaitable[Body]:
    body = request.body
    producer = ProducerStamp(body.producer_id, body.producer_epoch)
    if request.version >= HAS_NEXT_PRODUCER:
        return _end_v2(services, body.transactional_id, producer, commit=body.committed)
    return services.transactions.end(body.transactional_id, producer, commit=body.committed, response=_ENDED)


async def _end_v2(services: Services, transactional_id: str, producer: ProducerStamp, *, commit: bool) -> Body:
    following = await services.transactions.end_v2(
        transactional_id, producer, commit=commit, new_producer_id=services.producer_ids.next_id
    )
    return {
        "error_code": ErrorCode.none,
        "producer_id": following.producer_id,
        "producer_epoch": following.producer_epoch,
    }


def refuse(request: "Request[EndTxnRequest]", code: ErrorCode) -> Body:
    return {"error_code": fenced_code(request, code, HAS_PRODUCER_FENCED), "producer_id": -1, "producer_epoch": -1}
