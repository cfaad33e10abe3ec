"""The keys of SCRAM (RFC 5802, RFC 7677): what a server stores, and what both sides prove with it.

A server stores ``stored_key`` and ``server_key``. Neither lets anyone log in as a client, but a copy of them allows a
dictionary attack on the password, so they are as secret as a password hash.
"""

import hashlib
import hmac
from typing import NamedTuple

from skep.base.secret import HIDDEN


class Scram(NamedTuple):
    """A mechanism: its name, its number in Kafka's API, and its hash function."""

    name: str
    number: int
    hash_name: str


SCRAM_SHA_256 = Scram("SCRAM-SHA-256", 1, "sha256")
SCRAM_SHA_512 = Scram("SCRAM-SHA-512", 2, "sha512")
SCRAMS = {scram.name: scram for scram in (SCRAM_SHA_256, SCRAM_SHA_512)}


class ScramKeys(NamedTuple):
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramKeys({HIDDEN})"


def salted_password(scram: Scram, password: str, salt: bytes, iterations: int) -> bytes:
    """Returns the slow part of the derivation: 4096 iterations take a millisecond. Not for the event loop.

    The password is used as UTF-8 without SASLprep, as in Kafka.
    """
    return hashlib.pbkdf2_hmac(scram.hash_name, password.encode(), salt, iterations)


def client_key_of(scram: Scram, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", scram.hash_name)


def server_key_of(scram: Scram, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", scram.hash_name)


def keys_of(scram: Scram, salted: bytes) -> ScramKeys:
    """Returns what a server stores for a salted password."""
    return ScramKeys(_hash(scram, client_key_of(scram, salted)), server_key_of(scram, salted))


def client_proof(scram: Scram, salted: bytes, auth_message: bytes) -> bytes:
    client_key = client_key_of(scram, salted)
    signature = hmac.digest(_hash(scram, client_key), auth_message, scram.hash_name)
    return _xor(client_key, signature)


def proves(scram: Scram, keys: ScramKeys, auth_message: bytes, proof: bytes) -> bool:
    """Returns whether the sender of ``proof`` knows the client key of these keys."""
    signature = hmac.digest(keys.stored_key, auth_message, scram.hash_name)
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(_hash(scram, _xor(proof, signature)), keys.stored_key)


def server_signature(scram: Scram, server_key: bytes, auth_message: bytes) -> bytes:
    return hmac.digest(server_key, auth_message, scram.hash_name)


def made_up_bytes(scram: Scram, secret: bytes, text: str, length: int) -> bytes:
    """Returns bytes that look random and are always the same for a text, to whoever does not know the secret.

    ``length`` 0: as many as a key has.
    """
    found = b""
    while len(found) < (length or 1):
        found += hmac.digest(secret, f"{scram.name} {len(found)} {text}".encode(), scram.hash_name)
    return found[:length] if length else found


def _hash(scram: Scram, data: bytes) -> bytes:
    return hashlib.new(scram.hash_name, data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
