"""Checks of passwords for PLAIN: in threads, a few at a time, at the same cost whoever logs in."""

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from skep.base.secret import Secret
from skep.security.sasl.mechanism import AuthenticationFailed
from skep.wire.sasl.password_hash import HASH_BYTES, SALT_BYTES, PasswordHash
from skep.wire.sasl.plain import PLAIN

PARALLEL_CHECKS = 2
"""A check needs a processor for 80 ms. More at a time would leave fewer for the rest of the broker."""
MAX_WAITING = 200
"""Some eight seconds of checks. Who comes then is refused at once: the client would have given up before its turn."""

_NOBODY = PasswordHash(secrets.token_bytes(SALT_BYTES), secrets.token_bytes(HASH_BYTES))
"""Checked for users without a password: no password has this hash, and nobody is let in for it."""


class PlainUsers(Protocol):
    def password_hash(self, username: str) -> PasswordHash | None: ...


class PasswordChecks:
    """Owns the threads, and remembers the last good password of each user as a keyed digest, in memory only.

    So a client that comes again is not behind those who guess: ten thousand wrong passwords are minutes of hashing. A
    digest counts only together with the hash that it was checked against, so a changed password ends it. A wrong
    password always costs a hash, and so does the name of a user that does not exist.
    """

    def __init__(self, users: PlainUsers) -> None:
        self._users = users
        self._pool = ThreadPoolExecutor(PARALLEL_CHECKS, "password")
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._remembered: dict[str, tuple[PasswordHash, bytes]] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def knows(self, username: str) -> bool:
        return self._users.password_hash(username) is not None

    async def check(self, username: str, password: Secret, listed: Mapping[str, Secret]) -> bool:
        """Returns whether this is the user's password: the stored one, or the one ``listed`` in a file of options.

        Raises AuthenticationFailed if too many checks wait.
        """
        stored = self._users.password_hash(username)
        digest = hmac.digest(self._key, password.reveal().encode(), "sha256")
        if self._is_remembered(username, stored, digest):
            return True
        if password == listed.get(username, Secret("")) and username in listed:
            # At once: brokers log in to each other this way, also while others guess passwords.
            return True
        if self._waiting >= MAX_WAITING:
            raise AuthenticationFailed(PLAIN, f"{MAX_WAITING} passwords wait to be checked already")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            matches = await loop.run_in_executor(self._pool, (stored or _NOBODY).matches, password)
        finally:
            self._waiting -= 1
        if not matches or stored is None or stored != self._users.password_hash(username):
            return False  # or the password was changed meanwhile
        self._remembered[username] = stored, digest
        return True

    def _is_remembered(self, username: str, stored: PasswordHash | None, digest: bytes) -> bool:
        checked, known_digest = self._remembered.get(username, (None, bytes(len(digest))))
        is_same = hmac.compare_digest(digest, known_digest)
        if checked is not None and (stored is None or checked != stored):
            # The user was deleted or has another password now.
            del self._remembered[username]
            return False
        return is_same and checked is not None
