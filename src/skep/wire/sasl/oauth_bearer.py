"""The messages of OAUTHBEARER (RFC 7628, KIP-255): a token, and extensions by name.

::

    client  n,,^Aauth=Bearer <token>^Aname=value^A^A
    server  (empty), or {"status":"invalid_token"} and then the client sends ^A

"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from skep.base.secret import Secret
from skep.wire.sasl.sasl_error import SaslError

OAUTHBEARER = "OAUTHBEARER"
MAX_MESSAGE_BYTES = 64 * 1024
FAILED = b'{"status":"invalid_token"}'
"""The server's challenge for a token it does not accept. It does not say why."""
ACKNOWLEDGED = b"\x01"
"""The client's response to a failure."""

_SEPARATOR = "\x01"
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_EXTENSION = re.compile(r"([A-Za-z]+)=([\x20-\x7e\t\r\n]*)")


class BearerLogin(NamedTuple):
    authzid: str
    token: Secret
    extensions: Mapping[str, str]


def parse_bearer(message: bytes) -> BearerLogin:
    if len(message) > MAX_MESSAGE_BYTES:
        raise SaslError("the message is too long")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise SaslError("the message is not UTF-8") from None
    header, *pairs = text.split(_SEPARATOR)
    match header.split(","):
        case ["n", "", ""]:
            authzid = ""
        case ["n", name, ""] if name.startswith("a="):
            authzid = name[2:].replace("=2C", ",").replace("=3D", "=")
        case _:
            raise SaslError("the GS2 header is malformed, or asks for channel binding")
    if len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise SaslError("the message does not end with two separators")
    values: dict[str, str] = {}
    for pair in pairs[:-2]:
        found = _EXTENSION.fullmatch(pair)
        if found is None or found[1] in values:
            raise SaslError("an extension is malformed, or comes twice")
        values[found[1]] = found[2]
    scheme, _, token = values.pop("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise SaslError("the message has no bearer token")
    return BearerLogin(authzid, Secret(token), values)


class OAuthBearerClient:
    """The client's side. ``failure`` is the server's JSON if it refused the token."""

    def __init__(self, token: Secret, extensions: Mapping[str, str] | None = None) -> None:
        self._token, self._extensions = token, dict(extensions or {})
        self.failure: str | None = None

    def first(self) -> bytes:
        extensions = "".join(f"{name}={value}{_SEPARATOR}" for name, value in self._extensions.items())
        return f"n,,\x01auth=Bearer {self._token.reveal()}\x01{extensions}\x01".encode()

    def next(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        self.failure = challenge[:1000].decode(errors="replace")
        return ACKNOWLEDGED
