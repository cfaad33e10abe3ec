"""The users that the cluster stores, and their credentials. Never a password: keys for SCRAM, a hash for PLAIN.

An entry of the kind USERS has the credentials of one user by mechanism, as JSON::

    {"SCRAM-SHA-256": {"salt": "...", "iterations": 8192, "stored_key": "...", "server_key": "..."},
     "PLAIN": {"salt": "...", "hash": "...", "n": 32768, "r": 8, "p": 1}}

A user exists as long as it has a credential.
"""

import asyncio
import base64
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.base.password_file import read_password_file
from skep.base.secret import Secret
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import SECRETS, USERS, ClusterImage, Fields
from skep.security.sasl.scram_mechanism import ScramCredential, ScramLookup
from skep.wire.sasl import scram_keys
from skep.wire.sasl.password_hash import PasswordHash, hash_password, password_hash_of
from skep.wire.sasl.plain import MAX_NAME_BYTES, PLAIN
from skep.wire.sasl.scram_keys import SCRAMS, Scram, ScramKeys

logger = logging.getLogger(__name__)

FIRST_USER, PASSWORD_FILE = "skep.first.user", "skep.first.user.password.file"
DEFAULT_ITERATIONS = 8192
SALT_BYTES = 16
MAX_USERS = 100_000
UNKNOWN_USERS = "unknown-users"
"""The entry of the kind SECRETS that the salts of users who do not exist are made from."""

Credentials = Mapping[str, Fields]
"""The credentials of one user, by mechanism."""


class Users:
    """Looks up credentials in the current image."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._shapes_of: Mapping[str, Fields] | None = None
        self._shapes: dict[str, tuple[int, int]] = {}

    def password_hash(self, username: str) -> PasswordHash | None:
        fields = self._credentials(username).get(PLAIN)
        return None if fields is None else password_hash_of(fields)

    def scram_credential(self, scram: Scram, username: str) -> ScramLookup:
        made_up = self._made_up(scram, username)
        fields = self._credentials(username).get(scram.name)
        return ScramLookup(made_up, False) if fields is None else ScramLookup(scram_credential_of(fields), True)

    def _credentials(self, username: str) -> Credentials:
        return self._image().entries_of(USERS).get(username, {})

    def _made_up(self, scram: Scram, username: str) -> ScramCredential:
        """Returns what looks like the credential of a user: the same at each login, and at each broker."""
        iterations, salt_bytes = self._usual_shape(scram)
        secret = base64.b64decode(self._image().entries_of(SECRETS).get(UNKNOWN_USERS, {}).get("key", ""))
        salt = scram_keys.made_up_bytes(scram, secret, f"salt {username}", salt_bytes)
        key = scram_keys.made_up_bytes(scram, secret, f"key {username}", 0)
        return ScramCredential(salt, iterations, ScramKeys(key, key))

    def _usual_shape(self, scram: Scram) -> tuple[int, int]:
        """Returns the iterations and the length of the salt that most users have. Another shape would stand out."""
        entries = self._image().entries_of(USERS)
        if entries is not self._shapes_of:
            self._shapes_of, self._shapes = entries, {}
        if scram.name not in self._shapes:
            shapes = Counter(
                (fields["iterations"], len(base64.b64decode(fields["salt"])))
                for fields in (credentials.get(scram.name) for credentials in entries.values())
                if fields is not None
            )
            [(usual, _)] = shapes.most_common(1) or [((DEFAULT_ITERATIONS, SALT_BYTES), 0)]
            self._shapes[scram.name] = usual
        return self._shapes[scram.name]


def scram_credential_of(fields: Fields) -> ScramCredential:
    salt, stored_key, server_key = (base64.b64decode(fields[name]) for name in ("salt", "stored_key", "server_key"))
    return ScramCredential(salt, fields["iterations"], ScramKeys(stored_key, server_key))


def scram_fields(scram: Scram, salt: bytes, iterations: int, salted_password: bytes) -> dict[str, Any]:
    """Returns what is stored for a salted password, from which the password cannot be read."""
    keys = scram_keys.keys_of(scram, salted_password)
    return {
        "salt": _text(salt),
        "iterations": iterations,
        "stored_key": _text(keys.stored_key),
        "server_key": _text(keys.server_key),
    }


def credentials_of(password: Secret) -> dict[str, Fields]:
    """Returns the credentials of a password for all mechanisms. Takes a tenth of a second."""
    found: dict[str, Fields] = {PLAIN: hash_password(password).fields()}
    for scram in SCRAMS.values():
        salt = secrets.token_bytes(SALT_BYTES)
        salted = scram_keys.salted_password(scram, password.reveal(), salt, DEFAULT_ITERATIONS)
        found[scram.name] = scram_fields(scram, salt, DEFAULT_ITERATIONS, salted)
    return found


def check_name(name: str) -> None:
    """Raises UNACCEPTABLE_CREDENTIAL for a name that no user can have."""
    if not name:
        raise KafkaError(ErrorCode.unacceptable_credential, "Username must not be empty")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise KafkaError(ErrorCode.unacceptable_credential, f"Username is longer than {MAX_NAME_BYTES} bytes")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise KafkaError(ErrorCode.unacceptable_credential, "Username contains a control character")


def mechanisms_of(image: ClusterImage, name: str) -> dict[str, int | None] | None:
    """Returns how a user can log in, for the audit: the iterations of SCRAM, None for PLAIN. None: no such user."""
    credentials = image.entries_of(USERS).get(name)
    return None if credentials is None else {one: fields.get("iterations") for one, fields in credentials.items()}


async def alter_user(catalog: Catalog, name: str, changes: Mapping[str, Fields | None]) -> None:
    """Sets and removes (None) credentials of a user by mechanism, all or none. Raises KafkaError.

    RESOURCE_NOT_FOUND: a credential that is to be removed does not exist. UNACCEPTABLE_CREDENTIAL: the name, or there
    are too many users.
    """
    check_name(name)
    users = catalog.image.entries_of(USERS)
    if name not in users and len(users) >= MAX_USERS:
        raise KafkaError(ErrorCode.unacceptable_credential, f"There are {MAX_USERS} users already")

    def edit(before: Fields | None) -> Fields | None:
        after = dict(before or {})
        for mechanism, fields in changes.items():
            if fields is not None:
                after[mechanism] = fields
            elif after.pop(mechanism, None) is None:
                raise KafkaError(
                    ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
                )
        return after or None

    await catalog.alter_entry(USERS, name, edit)


async def ensure_first_user(catalog: Catalog, config: SecurityConfig) -> None:
    """Creates the user that the options name, with all mechanisms, unless it exists. Raises OptionError."""
    name, path = config.first_user, config.first_user_password_file
    if bool(name) != bool(path):
        raise OptionError(f"{FIRST_USER} (--user) and {PASSWORD_FILE} (--password-file) belong together")
    if not name or name in catalog.image.entries_of(USERS):
        return
    try:
        check_name(name)
    except KafkaError as error:
        raise OptionError(f"{FIRST_USER}: {error}") from None
    password = await asyncio.to_thread(read_password_file, Path(path), PASSWORD_FILE)
    credentials = await asyncio.to_thread(credentials_of, password)
    # Another broker that starts at the same time may be first.
    stored = await catalog.alter_entry(USERS, name, lambda before: before or credentials)
    if stored == credentials:
        logger.info("created user %s", name)


async def ensure_secret(catalog: Catalog) -> None:
    """Makes the key for users who do not exist, once for the life of the cluster."""
    if UNKNOWN_USERS not in catalog.image.entries_of(SECRETS):
        key = _text(secrets.token_bytes(32))
        await catalog.alter_entry(SECRETS, UNKNOWN_USERS, lambda before: before or {"key": key})


def users_with_revoked_credentials(old: ClusterImage, new: ClusterImage) -> set[str]:
    """Returns the users of whom a credential was removed or replaced. What was proven with it no longer counts."""
    before, after = old.entries_of(USERS), new.entries_of(USERS)
    if before is after:
        return set()
    return {
        name
        for name, credentials in before.items()
        if any(after.get(name, {}).get(mechanism) != fields for mechanism, fields in credentials.items())
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
