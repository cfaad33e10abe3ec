"""AddOffsetsToTxn (API 25), versions 0 to 4.

Behaviour
    Adds the partition of ``__consumer_offsets`` that holds the group's offsets to the producer's transaction, so that
    offsets can be committed in it (TxnOffsetCommit). The topic is created if it does not exist: the client asks for
    the group's coordinator only after this.

Versions
    1 changes nothing here (quotas).
    2: PRODUCER_FENCED.
    3 is flexible.
    4: TRANSACTION_ABORTABLE (KIP-890), which is not used here.

Refusals, in order
    INVALID_GROUP_ID; INVALID_REQUEST for an empty or too long transactional id; no coordinator here;
    INVALID_PRODUCER_ID_MAPPING; PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); CONCURRENT_TRANSACTIONS while
    the last transaction is being completed.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from skep.base.config.coordinator_config import CONSUMER_OFFSETS
from skep.base.errors import ErrorCode
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics import internal_topics
from skep.coordination.group_ids import check_group_id
from skep.coordination.shard import ProducerStamp
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AddOffsetsToTxnRequest

HAS_PRODUCER_FENCED = 2
_ADDED: Body = {"error_code": ErrorCode.none}


async def handle(services: Services, request: "Request[AddOffsetsToTxnRequest]") -> Body:
    body = request.body
    check_group_id(services.config.coordinator, body.group_id, may_be_empty=True)
    await internal_topics.ensure(services, CONSUMER_OFFSETS)
    producer = ProducerStamp(body.producer_id, body.producer_epoch)
    response = services.transactions.add_offsets(body.transactional_id, producer, body.group_id, _ADDED)
    return await response if isinstance(response, Awaitable) else response


def refuse(request: "Request[AddOffsetsToTxnRequest]", code: ErrorCode) -> Body:
    return {"error_code": fenced_code(request, code, HAS_PRODUCER_FENCED)}
