"""PLAIN: the client sends the password."""

from collections.abc import Awaitable
from typing import Protocol

from skep.base.secret import Secret
from skep.security.principal import Principal
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed, check_authzid
from skep.wire.sasl.plain import PLAIN, parse_plain
from skep.wire.sasl.sasl_error import SaslError


class Passwords(Protocol):
    """Knows which user has which password."""

    def check(self, username: str, password: Secret) -> Awaitable[bool]:
        """Does the same work for a user that does not exist. Raises AuthenticationFailed if too many checks wait."""
        ...


class PlainMechanism:
    name = PLAIN

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._is_used = False

    async def step(self, token: bytes) -> Authenticated:
        if self._is_used:
            raise AuthenticationFailed(PLAIN, "a second message")
        self._is_used = True
        try:
            login = parse_plain(token)
        except SaslError as error:
            raise AuthenticationFailed(PLAIN, str(error)) from None
        check_authzid(PLAIN, login.authzid, login.username)
        if not await self._passwords.check(login.username, login.password):
            raise AuthenticationFailed(PLAIN, "unknown user or wrong password")
        return Authenticated(Principal(login.username), b"")
