"""EndTxn (API 26), versions 0 to 4.

Behaviour
    Commits or aborts the producer's transaction. The response is sent when the decision is committed. The markers are
    written right after it, and until all are written the next transaction cannot begin (CONCURRENT_TRANSACTIONS). A
    repeated request with the same result gets the same response.

Versions
    1 changes nothing here (quotas).
    2: PRODUCER_FENCED.
    3 is flexible.
    4: TRANSACTION_ABORTABLE (KIP-890), which is not used here.

Refusals, in order
    INVALID_REQUEST for an empty or too long transactional id; no coordinator here; INVALID_PRODUCER_ID_MAPPING;
    PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); INVALID_TXN_STATE when no transaction was begun or the
    opposite was decided; CONCURRENT_TRANSACTIONS while the markers are being written.

Left out
    Version 5, which belongs to transactions v2 (KIP-890).
"""

from collections.abc import Awaitable

from skep.base.errors import ErrorCode
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.wire.codec import Body

HAS_PRODUCER_FENCED = 2
_ENDED: Body = {"error_code": ErrorCode.none}


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    producer = ProducerStamp(body.producer_id, body.producer_epoch)
    return services.transactions.end(body.transactional_id, producer, commit=body.committed, response=_ENDED)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": fenced_code(request, code, HAS_PRODUCER_FENCED)}
