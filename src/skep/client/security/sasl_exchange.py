"""The requests that authenticate a connection: SaslHandshake, then SaslAuthenticate until both are content. Sans-IO.

The same exchange on an open connection authenticates it again (KIP-368).
"""

from typing import Any

from skep.base.errors import ErrorCode
from skep.client.errors import ClientError, SecurityFailure
from skep.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from skep.wire.codec import Body
from skep.wire.sasl.sasl_client import SaslClient
from skep.wire.sasl.sasl_error import SaslError

_REAUTHENTICATE_AT = 0.85
"""Of the lifetime of a session, as Kafka's clients (they vary it up to 0.95)."""


class SaslExchange:
    """``first`` once, then ``next`` with each response, until it returns None.

    ``next`` may compute for milliseconds: on an event loop it belongs in a thread.
    """

    def __init__(self, mechanism: str, who: str, login: SaslClient, address: str) -> None:
        self._mechanism, self._who, self._address = mechanism, who, address
        self._login = login
        self._has_handshake = False
        self.session_lifetime_ms = 0

    @property
    def renew_after_s(self) -> float | None:
        """How long after the exchange it is to be repeated; None for a session without an end."""
        return self.session_lifetime_ms / 1000 * _REAUTHENTICATE_AT if self.session_lifetime_ms else None

    def first(self) -> tuple[Api, Body]:
        return SASL_HANDSHAKE, {"mechanism": self._mechanism}

    def next(self, response: Any) -> tuple[Api, Body] | None:
        """Raises SecurityFailure when the broker refuses, or is not the one that it should be."""
        if not self._has_handshake:
            self._check_handshake(response)
            self._has_handshake = True
            return SASL_AUTHENTICATE, {"auth_bytes": self._login.first()}
        if response.error_code is not ErrorCode.none:
            raise self._refused(response.error_code, response.error_message)
        self.session_lifetime_ms = _milliseconds(getattr(response, "session_lifetime", None))
        try:
            message = self._login.next(response.auth_bytes)
        except SaslError as error:
            raise SecurityFailure(f"{self._mechanism} with {self._address} failed: {error}") from None
        return None if message is None else (SASL_AUTHENTICATE, {"auth_bytes": message})

    def _check_handshake(self, response: Any) -> None:
        if response.error_code is ErrorCode.unsupported_sasl_mechanism:
            known = ", ".join(response.mechanisms) or "none"
            raise SecurityFailure(
                f"{self._address} does not accept sasl.mechanism={self._mechanism}; it accepts {known}"
            )
        if response.error_code is ErrorCode.illegal_sasl_state:
            raise SecurityFailure(
                f"{self._address} is a port without SASL: use security.protocol=PLAINTEXT or SSL, or another port"
            )
        if response.error_code is not ErrorCode.none:
            raise self._refused(response.error_code, None)

    def _refused(self, code: ErrorCode, message: str | None) -> ClientError:
        if code is ErrorCode.sasl_authentication_failed:
            return SecurityFailure(
                f"{self._address} refused the login {self._who} with {self._mechanism} ({message or code.name}): "
                "check the user, the password and the mechanism"
            )
        return SecurityFailure(f"{self._address} refused {self._mechanism}: {message or code.name}")


def _milliseconds(lifetime: Any) -> int:
    return 0 if lifetime is None else int(lifetime.total_seconds() * 1000)
