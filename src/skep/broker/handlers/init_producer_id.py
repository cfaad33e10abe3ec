"""InitProducerId (API 22), versions 0 to 5.

Behaviour
    A producer without a transactional id gets a new producer id with epoch 0, every time it asks, also when it names
    the id it had (KIP-360): nothing ties the new one to the old one's sequences.

Refusals
    INVALID_REQUEST for an empty transactional id, and for any other one: transactions are not served.
"""

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_PRODUCER_ID
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body


async def handle(services: Services, request: Request) -> Body:
    if request.body.transactional_id is not None:
        raise KafkaError(ErrorCode.invalid_request, "transactions are not served")
    return {"producer_id": await services.producer_ids.next_id(), "producer_epoch": 0}


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": -1}
