"""Passwords as scrypt hashes, for PLAIN: the one mechanism for which the server needs to recognize a password.

A client computes the hash when it sets a password, so the password itself does not travel. The parameters are the same
for all users: a hash with cheaper ones would be easier to break, one with dearer ones would let whoever may set a
password fill the broker's memory, and different ones would tell by the time of a failed login whether a user exists.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from skep.base.secret import HIDDEN, Secret

SCRYPT = {"n": 1 << 15, "r": 8, "p": 1}
"""32 MiB and some 80 ms for one password."""
MAX_MEMORY = 64 << 20
SALT_BYTES = 16
HASH_BYTES = 32


class PasswordHash(NamedTuple):
    salt: bytes
    hash: bytes

    def __repr__(self) -> str:
        return f"PasswordHash({HIDDEN})"

    def matches(self, password: Secret) -> bool:
        """Takes as long as making a hash. Not for the event loop; other threads run meanwhile."""
        return hmac.compare_digest(_scrypt(password, self.salt), self.hash)

    def fields(self) -> dict[str, Any]:
        """Returns what is stored, or sent: JSON."""
        return {**SCRYPT, "salt": base64.b64encode(self.salt).decode(), "hash": base64.b64encode(self.hash).decode()}


def hash_password(password: Secret) -> PasswordHash:
    salt = secrets.token_bytes(SALT_BYTES)
    return PasswordHash(salt, _scrypt(password, salt))


def password_hash_of(fields: Mapping[str, Any]) -> PasswordHash:
    """Reads what ``fields`` returned. Raises ValueError, without what was given, for anything else."""
    if fields.keys() != {*SCRYPT, "salt", "hash"} or any(fields[name] != value for name, value in SCRYPT.items()):
        wanted = ", ".join(f"{name}={value}" for name, value in SCRYPT.items())
        raise ValueError(f"a password hash has the fields salt and hash, and the parameters {wanted}")
    try:
        salt, hashed = (base64.b64decode(fields[name], validate=True) for name in ("salt", "hash"))
    except (TypeError, binascii.Error, ValueError):
        raise ValueError("the salt or the hash of a password is not base64") from None
    if len(salt) != SALT_BYTES or len(hashed) != HASH_BYTES:
        raise ValueError(f"the salt of a password has {SALT_BYTES} bytes and its hash {HASH_BYTES}")
    return PasswordHash(salt, hashed)


def _scrypt(password: Secret, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.reveal().encode(),
        salt=salt,
        n=SCRYPT["n"],
        r=SCRYPT["r"],
        p=SCRYPT["p"],
        maxmem=MAX_MEMORY,
        dklen=HASH_BYTES,
    )
