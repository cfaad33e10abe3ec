"""InitProducerId (API 22), versions 0 to 5.

Behaviour
    A producer without a transactional id gets a new producer id with epoch 0, every time it asks, also when it names
    the id it had (KIP-360): nothing ties the new one to the old one's sequences.

    With a transactional id the producer gets the id's next epoch, and whoever had the one before is fenced. A
    transaction that is open is aborted first: the answer is CONCURRENT_TRANSACTIONS, and the client asks again. From
    version 3 on a producer may name the producer id and epoch it has, to get its own next epoch after an error.

    Kafka lets a producer that names an epoch which is over abort the open transaction of its successor; here it is
    refused.

Refusals, in order
    INVALID_REQUEST for one of producer id and epoch without the other; for an empty or too long transactional id;
    INVALID_TRANSACTION_TIMEOUT above ``transaction.max.timeout.ms``; no coordinator here; POLICY_VIOLATION for one
    transactional id too many; PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 4) when another one has become the
    producer; CONCURRENT_TRANSACTIONS while the last transaction is being ended.
"""

from datetime import timedelta

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_PRODUCER_ID
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.init_producer import Initialization
from skep.wire.codec import Body

KNOWS_PRODUCER_FENCED = 4
_NO_EPOCH = -1
_MILLISECOND = timedelta(milliseconds=1)


async def handle(services: Services, request: Request) -> Body:
    body = request.body
    current = ProducerStamp(getattr(body, "producer_id", NO_PRODUCER_ID), getattr(body, "producer_epoch", _NO_EPOCH))
    if (current.producer_id == NO_PRODUCER_ID) is not (current.producer_epoch == _NO_EPOCH):
        raise KafkaError(ErrorCode.invalid_request, "a producer id and its epoch are given together")
    if body.transactional_id is None:
        return {"producer_id": await services.producer_ids.next_id(), "producer_epoch": 0}
    asked = Initialization(
        body.transactional_id,
        body.transaction_timeout // _MILLISECOND,
        None if current.producer_id == NO_PRODUCER_ID else current,
    )
    return await services.transactions.init_producer_id(asked, services.producer_ids.next_id)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {
        "error_code": fenced_code(request, code, KNOWS_PRODUCER_FENCED),
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": _NO_EPOCH,
    }
