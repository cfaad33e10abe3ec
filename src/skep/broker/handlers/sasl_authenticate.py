"""SaslAuthenticate (API 36), versions 0 to 2.

Behaviour
    Carries the messages of the mechanism that SaslHandshake has named. After the last one the client may send other
    requests.

    A failure is told after ``connection.failed.authentication.delay.ms``, with a text that is the same for an unknown
    user and a wrong password. The reason is in the broker's log. Then the connection is closed.

Versions
    1: the lifetime of the session (KIP-368), 0 if it has no end. A client of version 0 is disconnected at its end.
    2 is flexible.

Refusals
    ILLEGAL_SASL_STATE without a SaslHandshake; SASL_AUTHENTICATION_FAILED.
"""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.request import Request
from skep.broker.services import Services
from skep.security.sasl.mechanism import AuthenticationFailed
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import SaslAuthenticateRequest


async def handle(services: Services, request: "Request[SaslAuthenticateRequest]") -> Body:
    connection = request.connection
    session = None if connection is None else connection.sasl
    if connection is None or session is None:
        return refuse(request, ErrorCode.illegal_sasl_state)
    try:
        message, lifetime_ms = await session.authenticate(bytes(request.body.auth_bytes))
    except AuthenticationFailed as error:
        code, text, reason = ErrorCode.sasl_authentication_failed, str(error), f"{error.mechanism}: {error.reason}"
    except KafkaError as error:
        code, text, reason = error.code, str(error), str(error)
    else:
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "auth_bytes": message,
            "session_lifetime": timedelta(milliseconds=lifetime_ms),
        }
    await asyncio.sleep(session.failure_delay_s)
    connection.end_after_response(f"authentication failed, {reason}")
    return {**refuse(request, code), "error_message": text}


def refuse(request: "Request[SaslAuthenticateRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": None, "auth_bytes": b"", "session_lifetime": timedelta()}
