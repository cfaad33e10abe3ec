"""UnregisterBroker (API 64), version 0.

Behaviour
    Removes a broker that is gone for good from the deletions that wait for it to remove its files. Partitions that it
    holds keep it as a replica; reassign them first.

Versions
    0 is the only one.

Refusals, in order
    INVALID_REQUEST: the broker is running, and its registration lasts as long as its session (Kafka unregisters it,
    and it is back when it restarts); BROKER_ID_NOT_REGISTERED: no partition and no deletion names the broker.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.topic_creation import alive_brokers
from skep.metadata.cluster_image import ClusterImage
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import UnregisterBrokerRequest


async def handle(services: Services, request: "Request[UnregisterBrokerRequest]") -> Body:
    try:
        await _forget(services, request.body.broker_id)
    except RESPONSE_ERRORS as error:
        return {"error_code": code_of(error), "error_message": message_of(error)}
    return {"error_code": ErrorCode.none, "error_message": None}


async def _forget(services: Services, broker_id: BrokerId) -> None:
    if broker_id in alive_brokers(services):
        raise KafkaError(ErrorCode.invalid_request, f"Broker {broker_id} is running; stop it first.")
    waiting = services.catalog.deletions_waiting_for(broker_id)
    if not waiting and not _holds_anything(services.catalog.image, broker_id):
        raise KafkaError(ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered")
    for topic_id in waiting:
        await services.catalog.deletion_done(topic_id, broker_id)


def _holds_anything(image: ClusterImage, broker_id: BrokerId) -> bool:
    return any(broker_id in partition.replicas for topic in image.topics.values() for partition in topic.partitions)


def refuse(request: "Request[UnregisterBrokerRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": None}
