"""The SCRAM credentials of users in ``kafka-configs``: ``SCRAM-SHA-256=[iterations=8192,password=secret]``.

Kafka's tool takes the password on its command line, where other users of the machine can see it, and so does this one.
``--add-config-file`` and ``skep users`` do not show it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from skep.base.secret import Secret
from skep.cli import output
from skep.cli.failures import UsageError
from skep.cli.users.user_admin import list_users, remove_mechanisms, set_password
from skep.client.cluster_client import ClusterClient
from skep.wire.sasl.scram_keys import SCRAMS

IS_SCRAM = "SCRAM-"
KAFKAS_ITERATIONS = 4096
_FEWEST, _MOST = 4096, 16384
_FORM = re.compile(r"(?:iterations=(?P<iterations>[^,]*),)?password=(?P<password>.*)", re.DOTALL)


class _Credential(NamedTuple):
    iterations: int
    password: Secret


def is_scram(name: str) -> bool:
    return name.upper().startswith(IS_SCRAM)


def alter_credentials(client: ClusterClient, user: str, set_to: Mapping[str, str], unset: Iterable[str]) -> None:
    """Raises UsageError, without the password, for what is not a credential."""
    credentials = {_mechanism(name): _credential(name, text) for name, text in set_to.items()}
    removed = [_mechanism(name) for name in unset]
    for mechanism, credential in credentials.items():
        set_password(client, user, credential.password, [mechanism], credential.iterations)
    if removed:
        remove_mechanisms(client, user, removed)


def describe_credentials(client: ClusterClient, user: str | None) -> None:
    """Prints the mechanisms of one user, or of all that have any, as Kafka's tool does."""
    for one in list_users(client):
        rows = [f"{name}=iterations={count}" for name, count in one.mechanisms.items() if count is not None]
        if rows and user in (None, one.name):
            output.line(f"SCRAM credential configs for user-principal '{one.name}' are {', '.join(rows)}")


def _mechanism(name: str) -> str:
    if name not in SCRAMS:
        raise UsageError(f"{name}: there is no such mechanism; there are {', '.join(SCRAMS)}")
    return name


def _credential(name: str, text: str) -> _Credential:
    found = _FORM.fullmatch(text.strip())
    if found is None:
        if "iterations=" in text and "password=" not in text:
            raise UsageError(f"{name}: it needs a password: {name}=[iterations=8192,password=...]")
        raise UsageError(f"{name}: expected {name}=[iterations=8192,password=...]")
    iterations = found["iterations"] or str(KAFKAS_ITERATIONS)
    if not (iterations.isascii() and iterations.isdecimal() and _FEWEST <= int(iterations[:9]) <= _MOST):
        raise UsageError(f"{name}: iterations must be between {_FEWEST} and {_MOST}")
    return _Credential(int(iterations), Secret(found["password"]))
