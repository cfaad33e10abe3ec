"""The four messages of SCRAM (RFC 5802), as Kafka uses it: without channel binding.

::

    client-first  n,,n=alice,r=<client nonce>
    server-first  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final  c=biws,r=<both nonces>,p=<proof>
    server-final  v=<signature>

Each side proves that it knows the password by signing all of what was said (``auth_message``).
Extensions that a client adds are ignored, as the RFC wants it, except a mandatory one (``m=``) and Kafka's
``tokenauth``: what it asks for, a login by delegation token, would be a login by password here.
"""

import base64
import binascii
import re
from typing import NamedTuple

from skep.wire.sasl.plain import MAX_NAME_BYTES
from skep.wire.sasl.sasl_error import SaslError

MAX_MESSAGE_BYTES = 4096
MIN_ITERATIONS = 4096
"""RFC 7677. Fewer make a stolen key too cheap to try passwords against."""
MAX_ITERATIONS = 1_000_000
"""What a client computes for a server at most: about a second."""

_NONCE = re.compile(r"[!-+\--~]{1,512}")
"""Printable ASCII without the comma."""
_NAME = re.compile(r"(?:[^\0,=]|=2C|=3D)+")


class ClientFirst(NamedTuple):
    gs2_header: str
    """``n,,`` or ``n,a=<authzid>,``."""
    authzid: str
    username: str
    nonce: str
    bare: str
    """Everything behind the header: the first part of ``auth_message``."""


class ServerFirst(NamedTuple):
    nonce: str
    salt: bytes
    iterations: int

    def text(self) -> str:
        return f"r={self.nonce},s={_base64(self.salt)},i={self.iterations}"


class ClientFinal(NamedTuple):
    channel_binding: bytes
    """The GS2 header again, so that nobody changed it on the way."""
    nonce: str
    proof: bytes
    without_proof: str


def client_first_bare(username: str, nonce: str) -> str:
    escaped = username.replace("=", "=3D").replace(",", "=2C")
    return f"n={escaped},r={nonce}"


def auth_message(client_first_bare: str, server_first: str, final_without_proof: str) -> bytes:
    return f"{client_first_bare},{server_first},{final_without_proof}".encode()


def parse_client_first(token: bytes) -> ClientFirst:
    parts = _text(token).split(",")
    if parts[0] != "n":
        raise SaslError("channel binding is not supported; the message must begin with n,")
    if len(parts) < 4:
        raise SaslError("the first message is incomplete")
    authzid = _name(parts[1][2:]) if parts[1].startswith("a=") else parts[1] and _refuse("the GS2 header is malformed")
    if parts[2].startswith("m="):
        raise SaslError("mandatory extensions are not supported")
    username = _name(_value(parts[2], "n"))
    nonce = _nonce(_value(parts[3], "r"))
    for extension in parts[4:]:
        name, equals, _ = extension.partition("=")
        if not equals:
            raise SaslError("an extension is malformed")
        if name.lower() == "tokenauth":
            raise SaslError("delegation tokens are not supported")
    return ClientFirst(f"n,{parts[1]},", authzid, username, nonce, ",".join(parts[2:]))


def parse_server_first(token: bytes) -> ServerFirst:
    parts = _text(token).split(",")
    if parts[0].startswith("m="):
        raise SaslError("mandatory extensions are not supported")
    if len(parts) < 3:
        raise SaslError("the server's first message is incomplete")
    iterations = _value(parts[2], "i")
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise SaslError("the number of iterations is malformed")
    return ServerFirst(_nonce(_value(parts[0], "r")), _bytes(_value(parts[1], "s")), int(iterations))


def parse_client_final(token: bytes) -> ClientFinal:
    text = _text(token)
    without_proof, comma, proof = text.rpartition(",")
    parts = without_proof.split(",")
    if not comma or len(parts) < 2:
        raise SaslError("the final message is incomplete")
    return ClientFinal(
        _bytes(_value(parts[0], "c")), _nonce(_value(parts[1], "r")), _bytes(_value(proof, "p")), without_proof
    )


def server_final(signature: bytes) -> bytes:
    return f"v={_base64(signature)}".encode()


def parse_server_final(token: bytes) -> bytes:
    """Returns the server's signature. Raises SaslError if the server refused the client instead."""
    first = _text(token).split(",")[0]
    if first.startswith("e="):
        raise SaslError("the server refused the login")
    return _bytes(_value(first, "v"))


def final_without_proof(gs2_header: str, nonce: str) -> str:
    return f"c={_base64(gs2_header.encode())},r={nonce}"


def with_proof(without_proof: str, proof: bytes) -> bytes:
    return f"{without_proof},p={_base64(proof)}".encode()


def _text(token: bytes) -> str:
    if len(token) > MAX_MESSAGE_BYTES:
        raise SaslError("the message is too long")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise SaslError("the message is not UTF-8") from None


def _value(part: str, name: str) -> str:
    if not part.startswith(f"{name}="):
        raise SaslError(f"the message has no {name}= where it should have one")
    return part[2:]


def _name(escaped: str) -> str:
    if not _NAME.fullmatch(escaped):
        raise SaslError("the name of the user is malformed")
    name = escaped.replace("=2C", ",").replace("=3D", "=")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise SaslError("the name of the user is too long")
    return name


def _nonce(nonce: str) -> str:
    return nonce if _NONCE.fullmatch(nonce) else _refuse("the nonce is malformed")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslError("a value is not base64") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _refuse(reason: str) -> str:
    raise SaslError(reason)
