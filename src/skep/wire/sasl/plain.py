"""The one message of PLAIN (RFC 4616): ``authzid NUL authcid NUL password``, all of it UTF-8."""

from typing import NamedTuple

from skep.base.secret import Secret
from skep.wire.sasl.sasl_error import SaslError

PLAIN = "PLAIN"

MAX_NAME_BYTES = 255
"""The longest name of a user, in UTF-8, with every mechanism."""
MAX_PASSWORD_BYTES = 1024


class PlainLogin(NamedTuple):
    authzid: str
    """Whom the client wants to be. Empty: the user itself."""
    username: str
    password: Secret


def parse_plain(token: bytes) -> PlainLogin:
    if len(token) > 2 * MAX_NAME_BYTES + MAX_PASSWORD_BYTES + 2:
        raise SaslError("the message is too long")
    try:
        fields = token.decode().split("\0")
    except UnicodeDecodeError:
        # Without a cause: a UnicodeDecodeError holds the bytes, and a traceback would be a way to see them.
        raise SaslError("the message is not UTF-8") from None
    if len(fields) != 3:
        raise SaslError(f"the message has {len(fields)} fields, expected 3")
    authzid, username, password = fields
    if not username or not password:
        raise SaslError("the user or the password is empty")
    if any(len(name.encode()) > MAX_NAME_BYTES for name in (authzid, username)):
        raise SaslError("the name of the user is too long")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise SaslError("the password is too long")
    return PlainLogin(authzid, username, Secret(password))


class PlainClient:
    """The client's side."""

    def __init__(self, username: str, password: Secret) -> None:
        self._username, self._password = username, password

    def first(self) -> bytes:
        return f"\0{self._username}\0{self._password.reveal()}".encode()

    def next(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise SaslError("the server sent a challenge, and PLAIN has none")
        return None
