"""What all mechanisms of the server have in common: their steps, how they succeed and how they fail."""

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from skep.security.principal import Principal


class Authenticated(NamedTuple):
    """The client has proven who it is."""

    principal: Principal
    response: bytes
    """The last message to the client. It may be empty."""
    expires_at_ms: int | None = None
    """When what the client has shown ends (a token's ``exp``), as milliseconds since 1970; None: never."""


Step = bytes | Authenticated
"""A challenge for the client, or success."""


class AuthenticationFailed(Exception):
    """The client has not proven who it is. Its connection ends.

    ``str()`` is for the client and is the same for an unknown user, a wrong password and a malformed message.
    ``reason`` is for the log. It names the user only if the user exists: people type passwords into the field for the
    name.
    """

    def __init__(self, mechanism: str, reason: str) -> None:
        super().__init__(f"Authentication failed with SASL mechanism {mechanism}: invalid credentials")
        self.mechanism = mechanism
        self.reason = reason


class Mechanism(Protocol):
    """One login of one connection. It is used up by success and by failure.

    Messages of the client are passed to ``step`` in turn, each after the step before has ended. A step that takes long
    runs in a thread and is awaited.
    """

    @property
    def name(self) -> str: ...

    def step(self, token: bytes) -> Step | Awaitable[Step]:
        """Raises AuthenticationFailed."""
        ...


def check_authzid(mechanism: str, authzid: str, username: str) -> None:
    """Refuses a client that proves to be one user and asks to be another (CVE-2017-12610)."""
    if authzid not in ("", username):
        raise AuthenticationFailed(mechanism, "the client asked to act as another user")
