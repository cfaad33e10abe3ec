"""EndTxn (API 26), versions 0 to 4.

Behaviour
    Commits or aborts the producer's transaction. The answer goes out when the decision is committed; the markers that
    tell readers follow at once, and until all are written the next transaction cannot begin (CONCURRENT_TRANSACTIONS).
    Asked again with the same result, the answer is the same.

Refusals, in order
    INVALID_REQUEST for an empty or too long transactional id; no coordinator here; INVALID_PRODUCER_ID_MAPPING;
    PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); INVALID_TXN_STATE when nothing was begun or the opposite
    has been decided; CONCURRENT_TRANSACTIONS while the markers are being written.
"""

from collections.abc import Awaitable

from skep.base.errors import ErrorCode
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.wire.codec import Body

KNOWS_PRODUCER_FENCED = 2
_ENDED: Body = {"error_code": ErrorCode.none}


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    producer = ProducerStamp(body.producer_id, body.producer_epoch)
    return services.transactions.end(body.transactional_id, producer, commit=body.committed, answer=_ENDED)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": fenced_code(request, code, KNOWS_PRODUCER_FENCED)}
