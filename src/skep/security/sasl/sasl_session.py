"""SASL on one connection: the mechanism that the client chose, its login, and the session that follows (KIP-368).

A session ends after ``connections.max.reauth.ms``, or with the token that the client has shown if that is earlier.
Until then the client may log in again, by the same mechanism and as the same principal, and a new session begins. A
session without an end cannot be renewed, as in Kafka.
"""

from collections.abc import Awaitable
from typing import Protocol

from skep.base.clock import Clock
from skep.base.config.security_config import SecurityConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.security.principal import Principal
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed, Mechanism
from skep.security.sasl.mechanisms import Mechanisms


class SaslConnection(Protocol):
    """The connection as its session sees it."""

    def authenticated(self, principal: Principal, lifetime_ms: int) -> None:
        """Raises CloseConnection."""
        ...


class SaslSession:
    """Owns the login under way. ``_principal`` and ``_mechanism_name`` are those of the last one that succeeded."""

    def __init__(
        self, mechanisms: Mechanisms, connection: SaslConnection, security: SecurityConfig, clock: Clock
    ) -> None:
        self._mechanisms = mechanisms
        self._connection = connection
        self._security = security
        self._clock = clock
        self._login: Mechanism | None = None
        self._mechanism_name = ""
        self._principal: Principal | None = None
        self._lifetime_ms = 0

    @property
    def mechanism_names(self) -> list[str]:
        return self._mechanisms.names

    @property
    def failure_delay_s(self) -> float:
        """How long to wait before the client hears of a failure, so that guessing takes time."""
        return self._security.connection_failed_authentication_delay_ms / 1000

    def handshake(self, mechanism: str) -> None:
        """Begins a login. Raises ILLEGAL_SASL_STATE or UNSUPPORTED_SASL_MECHANISM, after which the connection ends."""
        if self._login is not None:
            raise KafkaError(ErrorCode.illegal_sasl_state, "a SaslHandshake within a login")
        if self._principal is not None:
            if not self._lifetime_ms:
                raise KafkaError(
                    ErrorCode.illegal_sasl_state, "the client has authenticated, and its session has no end"
                )
            if mechanism != self._mechanism_name:
                raise KafkaError(
                    ErrorCode.unsupported_sasl_mechanism, "another mechanism than that of the session to be renewed"
                )
        self._login = self._mechanisms.begin(mechanism)

    async def authenticate(self, token: bytes) -> tuple[bytes, int]:
        """Passes on a message of the client. Returns the one for the client, and the lifetime of the session in ms.

        The lifetime is 0 before the last message, and for a session without an end. Raises AuthenticationFailed,
        ILLEGAL_SASL_STATE without a handshake, or CloseConnection.
        """
        login = self._login
        if login is None:
            raise KafkaError(ErrorCode.illegal_sasl_state, "a SaslAuthenticate without a SaslHandshake")
        step = login.step(token)
        if isinstance(step, Awaitable):
            step = await step
        if not isinstance(step, Authenticated):
            return step, 0
        if self._principal is not None and step.principal != self._principal:
            raise AuthenticationFailed(login.name, f"{self._principal} cannot become {step.principal}")
        lifetime_ms = self._lifetime(step.expires_at_ms)
        if lifetime_ms < 0:
            raise AuthenticationFailed(login.name, f"the token of {step.principal} has expired")
        self._connection.authenticated(step.principal, lifetime_ms)
        self._login, self._mechanism_name = None, login.name
        self._principal, self._lifetime_ms = step.principal, lifetime_ms
        return step.response, lifetime_ms

    def _lifetime(self, expires_at_ms: int | None) -> int:
        longest = self._security.connections_max_reauth_ms
        if expires_at_ms is None:
            return longest
        left = expires_at_ms - self._clock.now_ms()
        if left <= 0:
            return -1
        return min(longest, left) if longest else left
