"""PLAIN: the client sends the password.

Whoever reads the connection reads the password, so a listener offers PLAIN only with TLS or on loopback.
The password is in a ``Secret`` from the first moment on, and is dropped with the message.
"""

from collections.abc import Mapping
from types import MappingProxyType

from skep.base.secret import Secret
from skep.security.principal import Principal
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed, check_authzid
from skep.security.sasl.password_checks import PasswordChecks
from skep.wire.sasl.plain import PLAIN, parse_plain
from skep.wire.sasl.sasl_error import SaslError

NOBODY: Mapping[str, Secret] = MappingProxyType({})


class PlainMechanism:
    """``listed``: the users that the listener has besides the stored ones, ``user_NAME`` in its JAAS config."""

    name = PLAIN

    def __init__(self, passwords: PasswordChecks, listed: Mapping[str, Secret] = NOBODY) -> None:
        self._passwords, self._listed = passwords, listed
        self._is_used = False

    async def step(self, token: bytes) -> Authenticated:
        if self._is_used:
            raise AuthenticationFailed(PLAIN, "a second message")
        self._is_used = True
        try:
            login = parse_plain(token)
        except SaslError as error:
            raise AuthenticationFailed(PLAIN, str(error)) from None
        username = login.username
        check_authzid(PLAIN, login.authzid, username)
        if not await self._passwords.check(username, login.password, self._listed):
            is_known = username in self._listed or self._passwords.knows(username)
            raise AuthenticationFailed(PLAIN, f"user {username!r}: wrong password" if is_known else "unknown user")
        return Authenticated(Principal(username), b"")
