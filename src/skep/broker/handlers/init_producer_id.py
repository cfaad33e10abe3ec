"""InitProducerId (API 22), versions 0 to 5.

Behaviour
    A producer without a transactional id gets a new producer id with epoch 0 each time it asks, also when it names the
    id that it had (KIP-360): the new id has no connection with the sequence numbers of the old one.

    With a transactional id the producer gets the next epoch of that id, and the producer with the previous epoch is
    fenced. An open transaction is aborted first: the response is CONCURRENT_TRANSACTIONS, and the client retries. From
    version 3 on a producer may name its producer id and epoch, to get its own next epoch after an error.

    A coordinator that is loading, or that does not know yet that it is one, waits for at most five seconds before it
    refuses.

    Kafka lets a producer with a fenced epoch abort the open transaction of its successor; here it is refused.

Versions
    1 changes nothing here (quotas).
    2 is flexible.
    3: the producer's current id and epoch (KIP-360).
    4: PRODUCER_FENCED (KIP-588).
    5: TRANSACTION_ABORTABLE (KIP-890), which is not used here.

Refusals, in order
    INVALID_REQUEST for a producer id without an epoch or an epoch without a producer id, and for an empty or too long
    transactional id; INVALID_TRANSACTION_TIMEOUT above ``transaction.max.timeout.ms``; no coordinator here;
    POLICY_VIOLATION beyond ``skep.max.transactional.ids``; PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 4)
    when another producer has taken the transactional id; CONCURRENT_TRANSACTIONS while the last transaction is being
    completed.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_PRODUCER_ID
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.init_producer import InitProducerRequest
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import InitProducerIdRequest

HAS_PRODUCER_FENCED = 4
_NO_EPOCH = -1
_MILLISECOND = timedelta(milliseconds=1)


async def handle(services: Services, request: "Request[InitProducerIdRequest]") -> Body:
    body = request.body
    current = ProducerStamp(getattr(body, "producer_id", NO_PRODUCER_ID), getattr(body, "producer_epoch", _NO_EPOCH))
    if (current.producer_id == NO_PRODUCER_ID) is not (current.producer_epoch == _NO_EPOCH):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"producer id {current.producer_id} and epoch {current.producer_epoch}: give both or neither (-1)",
        )
    if body.transactional_id is None:
        return {"producer_id": await services.producer_ids.next_id(), "producer_epoch": 0}
    asked = InitProducerRequest(
        body.transactional_id,
        body.transaction_timeout // _MILLISECOND,
        None if current.producer_id == NO_PRODUCER_ID else current,
    )
    return await services.transactions.init_producer_id(asked, services.producer_ids.next_id)


def refuse(request: "Request[InitProducerIdRequest]", code: ErrorCode) -> Body:
    return {
        "error_code": fenced_code(request, code, HAS_PRODUCER_FENCED),
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": _NO_EPOCH,
    }
