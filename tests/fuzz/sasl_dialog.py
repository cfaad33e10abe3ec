"""SASL from a client's side, written by hand: frames, tokens of every mechanism, and a login that costs little.

Nothing of Skep's own code is used, so that a mistake on both sides does not cancel out.
"""

import base64
import functools
import hashlib
import hmac
import json
import random
import socket
import struct
import time

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def handshake(mechanism: str, version: int = 1) -> bytes:
    """SaslHandshake (API 17)."""
    name = mechanism.encode()
    return struct.pack(">hhih4sh", 17, version, 1, 4, b"fuzz", len(name)) + name


def authenticate(token: bytes, version: int = 1) -> bytes:
    """SaslAuthenticate (API 36); version 2 is flexible."""
    header = struct.pack(">hhih4s", 36, version, 2, 4, b"fuzz")
    if version >= 2:
        return header + b"\0" + _uvarint(len(token) + 1) + token + b"\0"
    return header + struct.pack(">i", len(token)) + token


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def receive(connection: socket.socket) -> bytes:
    """The next frame, without its length."""
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("closed by the broker")
        data += piece
    return data


def begin(connection: socket.socket, mechanism: str) -> None:
    """SaslHandshake, on a blocking connection."""
    connection.sendall(framed(handshake(mechanism)))
    response = receive(connection)
    (error,) = struct.unpack_from(">h", response, 4)
    assert error == 0, f"{mechanism} was refused with error {error}"


def token_exchange(connection: socket.socket, token: bytes) -> tuple[int, bytes]:
    """SaslAuthenticate v1: the error code and the server's bytes."""
    connection.sendall(framed(authenticate(token)))
    response = receive(connection)
    (error, message_length) = struct.unpack_from(">hh", response, 4)
    place = 8 + max(message_length, 0)
    (length,) = struct.unpack_from(">i", response, place)
    return error, response[place + 4 : place + 4 + max(length, 0)]


def plain_token(user: str, password: str, authzid: str = "") -> bytes:
    return f"{authzid}\0{user}\0{password}".encode()


def bearer_token(source: random.Random) -> bytes:
    """As an OAUTHBEARER client begins: the shape of a JWT, signed by nobody."""
    algorithm = source.choice(("RS256", "none", "HS256", "ES256", ""))
    header = _encoded({"alg": algorithm, "typ": "JWT", "kid": source.choice(("1", "../../etc/passwd", ""))})
    claims = _encoded({"sub": "admin", "exp": source.choice((0, 2**31, -1, "x")), "iss": "x", "aud": ["y"]})
    signature = base64.urlsafe_b64encode(source.randbytes(32)).rstrip(b"=")
    jwt = source.choice((header + b"." + claims + b"." + signature, header + b"." + claims + b".", b"x"))
    return b"n,,\x01auth=Bearer " + jwt + b"\x01\x01"


def _encoded(value: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def client_first(user: str, nonce: str, authzid: str = "") -> tuple[bytes, str]:
    """The message, and the part of it that the proof is about."""
    bare = f"n={user},r={nonce}"
    return f"n,{authzid},{bare}".encode(), bare


def client_final(mechanism: str, password: str, bare: str, server_first: bytes) -> bytes:
    """The proof of RFC 5802. The slow part is remembered, so a login costs the broker more than its client."""
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    hash_name = HASHES[mechanism]
    salted = _salted(hash_name, password, base64.b64decode(fields["s"]), int(fields["i"]))
    without_proof = f"c=biws,r={fields['r']}"
    message = f"{bare},{server_first.decode()},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, message, hash_name)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@functools.cache
def _salted(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def scram_login(connection: socket.socket, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
    """A whole login on a blocking connection. AssertionError if it is refused."""
    begin(connection, mechanism)
    first, bare = client_first(user, f"{time.monotonic_ns():x}{random.getrandbits(64):x}")
    error, challenge = token_exchange(connection, first)
    assert error == 0, f"the first message was refused with error {error}"
    error, _ = token_exchange(connection, client_final(mechanism, password, bare, challenge))
    assert error == 0, f"the login of {user} was refused with error {error}"
