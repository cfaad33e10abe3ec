"""The client's side of every mechanism."""

from typing import Protocol

from skep.base.errors import OptionError
from skep.base.secret import Secret
from skep.wire.sasl.oauth_bearer import OAUTHBEARER, OAuthBearerClient
from skep.wire.sasl.plain import PLAIN, PlainClient
from skep.wire.sasl.scram_client import ScramClient
from skep.wire.sasl.scram_keys import SCRAMS

MECHANISMS = (PLAIN, *SCRAMS, OAUTHBEARER)


class SaslClient(Protocol):
    """One login. Each response of the server goes to ``next``, also the last one: it may have to prove something.

    Raises SaslError if the server's message is malformed or proves the wrong thing. ``next`` may compute for some
    milliseconds.
    """

    def first(self) -> bytes: ...

    def next(self, challenge: bytes) -> bytes | None:
        """Returns what is sent next; None when the login is complete."""
        ...


def password_client(mechanism: str, username: str, password: Secret) -> SaslClient:
    """Begins a login by name and password, with PLAIN or SCRAM."""
    if mechanism == PLAIN:
        return PlainClient(username, password)
    if mechanism in SCRAMS:
        return ScramClient(SCRAMS[mechanism], username, password)
    if mechanism == OAUTHBEARER:
        raise OptionError(f"{OAUTHBEARER} needs a token, not a password")
    raise OptionError(f"unknown SASL mechanism {mechanism!r}; known are {', '.join(MECHANISMS)}")


def token_client(token: Secret) -> SaslClient:
    """Begins a login with OAUTHBEARER."""
    return OAuthBearerClient(token)
