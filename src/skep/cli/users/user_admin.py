"""Reads and changes the users of a cluster: SCRAM credentials with Kafka's APIs, passwords for PLAIN with Skep's.

A password stays in this process. The cluster gets a salted password for SCRAM, and a hash for PLAIN, which only Skep's
brokers take.
"""

import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.secret import Secret
from skep.base.unknown_names import did_you_mean
from skep.cli.failures import CommandError, UsageError
from skep.cli.skep_client import error_text
from skep.client.cluster_client import ClusterClient, Node
from skep.client.commands import command_to_node
from skep.client.errors import Unsupported
from skep.client.retry import call_with_retries
from skep.wire.apis import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS, Api
from skep.wire.codec import Body
from skep.wire.sasl.password_hash import hash_password
from skep.wire.sasl.plain import MAX_PASSWORD_BYTES, PLAIN
from skep.wire.sasl.scram_keys import SCRAMS, Scram, salted_password

DEFAULT_ITERATIONS = 8192
SALT_BYTES = 16
MECHANISMS = (PLAIN, *SCRAMS)
_BY_NUMBER = {scram.number: scram.name for scram in SCRAMS.values()}


class User(NamedTuple):
    """A user, and how it can log in: the iterations of each SCRAM mechanism, None for PLAIN."""

    name: str
    mechanisms: dict[str, int | None]


def checked_mechanisms(names: Iterable[str]) -> list[str]:
    """Returns the mechanisms in upper case, each once. Raises UsageError for an unknown one."""
    found = list(dict.fromkeys(name.upper() for name in names))
    for name in found:
        if name not in MECHANISMS:
            raise UsageError(
                f"unknown mechanism '{name}'{did_you_mean(name, MECHANISMS)}; passwords are for {', '.join(MECHANISMS)}"
            )
    return found


def check_password(password: Secret) -> None:
    if not password:
        raise UsageError("the password is empty")
    if "\0" in password.reveal() or len(password.reveal().encode(errors="surrogateescape")) > MAX_PASSWORD_BYTES:
        raise UsageError(f"the password has more than {MAX_PASSWORD_BYTES} bytes, or contains a zero byte")


def list_users(client: ClusterClient) -> list[User]:
    found: dict[str, User] = {}
    for row in _ask(client, "users", DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}).results:
        if row.error_code is ErrorCode.none:
            found[row.user] = User(
                row.user, {_BY_NUMBER[one.mechanism]: one.iterations for one in row.credential_infos}
            )
    for name in _plain_users(client):
        found.setdefault(name, User(name, {})).mechanisms[PLAIN] = None
    return [user._replace(mechanisms=dict(sorted(user.mechanisms.items()))) for _, user in sorted(found.items())]


def find_user(client: ClusterClient, name: str) -> User:
    users = {user.name: user for user in list_users(client)}
    if name not in users:
        raise CommandError(f"user '{name}' does not exist{did_you_mean(name, users)}")
    return users[name]


def set_password(
    client: ClusterClient,
    name: str,
    password: Secret,
    mechanisms: Iterable[str],
    iterations: int = DEFAULT_ITERATIONS,
) -> None:
    """Sets the password of a user for these mechanisms, and leaves its other ones unchanged."""
    check_password(password)
    wanted = list(mechanisms)
    upsertions = [_upsertion(name, SCRAMS[one], password, iterations) for one in wanted if one in SCRAMS]
    if upsertions:
        _alter(client, name, {"deletions": [], "upsertions": upsertions})
    if PLAIN in wanted:
        _command(client, name, {"user": name, "hash": hash_password(password).fields()})


def remove_mechanisms(client: ClusterClient, name: str, mechanisms: Iterable[str]) -> None:
    """Removes credentials of a user. Without any it no longer exists."""
    wanted = list(mechanisms)
    deletions = [{"name": name, "mechanism": SCRAMS[one].number} for one in wanted if one in SCRAMS]
    if deletions:
        _alter(client, name, {"deletions": deletions, "upsertions": []})
    if PLAIN in wanted:
        _command(client, name, {"user": name, "hash": None})


def _upsertion(name: str, scram: Scram, password: Secret, iterations: int) -> dict[str, Any]:
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(scram, password.reveal(), salt, iterations)
    return {
        "name": name,
        "mechanism": scram.number,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted,
    }


def _alter(client: ClusterClient, name: str, body: Body) -> None:
    response = _ask(client, f"user '{name}'", ALTER_USER_SCRAM_CREDENTIALS, body)
    for row in response.results:
        if row.error_code is not ErrorCode.none:
            raise CommandError(f"user '{name}': {row.error_message or error_text(row.error_code)}")


def _ask(client: ClusterClient, what: str, api: Api, body: Body) -> Any:
    return call_with_retries(client, what, lambda: client.ask_node(_controller(client), api, body))


def _controller(client: ClusterClient) -> Node:
    # Any Skep broker takes these requests; an older Kafka wants its controller, which Metadata names.
    metadata = client.metadata(())
    nodes = {node.node_id: node for node in client.nodes()}
    return nodes.get(getattr(metadata, "controller_id", -1)) or next(iter(nodes.values()))


def _plain_users(client: ClusterClient) -> list[str]:
    names: list[str] = []
    after = ""
    while True:
        try:
            found = command_to_node(client, client.nodes()[0], "plain_users", {"after": after})
        except Unsupported:
            return names
        names += found["users"]
        if found["next"] is None:
            return names
        after = found["next"]


def _command(client: ClusterClient, name: str, arguments: dict[str, Any]) -> None:
    try:
        command_to_node(client, client.nodes()[0], "alter_plain_user", arguments)
    except Unsupported:
        raise CommandError(f"user '{name}': this cluster cannot store passwords for {PLAIN}; use SCRAM") from None
    except KafkaError as error:
        raise CommandError(f"user '{name}': {error.detail or error_text(error.code)}") from None
