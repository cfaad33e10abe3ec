"""SaslHandshake (API 17), version 1.

Behaviour
    The client names the SASL mechanism of its login, which follows in SaslAuthenticate. The response lists the
    mechanisms of the listener.

    In a session that ends (KIP-368) the client may begin another login, by the same mechanism.

Versions
    1 is the only one that is served: the messages of the login follow in SaslAuthenticate (KIP-152). Version 0 is
    listed in ApiVersions, because librdkafka sees no SASL otherwise, and closes the connection.

Refusals, in order
    ILLEGAL_SASL_STATE on a listener without SASL, within a login, and in a session without an end;
    UNSUPPORTED_SASL_MECHANISM. Then the connection is closed, as Kafka does it.

Left out
    Version 0, after which the messages of a login follow without headers: librdkafka, Java's client, kafka-python and
    aiokafka use version 1 wherever it is offered.
"""

import asyncio
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import SaslHandshakeRequest


async def handle(services: Services, request: "Request[SaslHandshakeRequest]") -> Body:
    connection = request.connection
    session = None if connection is None else connection.sasl
    if connection is None or session is None:
        return refuse(request, ErrorCode.illegal_sasl_state)
    try:
        session.handshake(request.body.mechanism)
    except KafkaError as error:
        await asyncio.sleep(session.failure_delay_s)
        connection.end_after_response(f"SaslHandshake was refused: {error}")
        return {"error_code": error.code, "mechanisms": session.mechanism_names}
    return {"error_code": ErrorCode.none, "mechanisms": session.mechanism_names}


def refuse(request: "Request[SaslHandshakeRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "mechanisms": []}
