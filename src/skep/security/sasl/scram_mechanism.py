"""SCRAM-SHA-256 and SCRAM-SHA-512: the client proves that it knows the password, without sending it (RFC 5802).

A client that names a user who does not exist gets a salt and a number of iterations too, the same ones each time, and
is refused only after its proof, as if the password had been wrong.
"""

import enum
import hmac
import secrets
from typing import NamedTuple, Protocol

from skep.base.secret import HIDDEN
from skep.security.principal import Principal
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed, Step, check_authzid
from skep.wire.sasl import scram_keys
from skep.wire.sasl.sasl_error import SaslError
from skep.wire.sasl.scram_keys import Scram, ScramKeys
from skep.wire.sasl.scram_messages import (
    ClientFirst,
    ServerFirst,
    auth_message,
    parse_client_final,
    parse_client_first,
    server_final,
)

SERVER_NONCE_BYTES = 24


class ScramCredential(NamedTuple):
    """What the server knows of a user's password."""

    salt: bytes
    iterations: int
    keys: ScramKeys

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, salt={HIDDEN}, keys={HIDDEN})"


class ScramLookup(NamedTuple):
    credential: ScramCredential
    is_known: bool
    """False: there is no such user, and the credential is made up."""


class ScramUsers(Protocol):
    def scram_credential(self, scram: Scram, username: str) -> ScramLookup:
        """Returns a made-up credential for a user that does not exist, always the same one for the same name."""
        ...


class _State(enum.Enum):
    BEGUN = enum.auto()
    CHALLENGED = enum.auto()
    ENDED = enum.auto()


class ScramMechanism:
    """Owns the nonce of this login. A message of another login has another nonce, so it cannot be replayed here.

    Whatever a step raises, the login has ended: no second proof is tried against the same nonce.
    """

    def __init__(self, scram: Scram, users: ScramUsers, server_nonce: str | None = None) -> None:
        self._scram, self._users = scram, users
        self._server_nonce = server_nonce or secrets.token_urlsafe(SERVER_NONCE_BYTES)
        self._state = _State.BEGUN
        self._client_first: ClientFirst
        self._server_first: ServerFirst
        self._found: ScramLookup

    @property
    def name(self) -> str:
        return self._scram.name

    def step(self, token: bytes) -> Step:
        state, self._state = self._state, _State.ENDED
        try:
            if state is _State.BEGUN:
                challenge = self._challenge(token)
                self._state = _State.CHALLENGED
                return challenge
            if state is _State.CHALLENGED:
                return self._verify(token)
        except SaslError as error:
            raise AuthenticationFailed(self.name, str(error)) from None
        raise AuthenticationFailed(self.name, "a message after the end of the login")

    def _is_our_nonce(self, nonce: str) -> bool:
        """Compares the whole nonce, not only how it begins (CVE-2024-56128).

        librdkafka before 2.6.1 puts its own nonce before it once more (its issue 4895). That has the same server nonce
        in it, whole and at the same place in every login, so it is as good against replay.
        """
        whole = self._server_first.nonce
        is_whole = hmac.compare_digest(nonce.encode(), whole.encode())
        return is_whole or hmac.compare_digest(nonce.encode(), (self._client_first.nonce + whole).encode())

    def _challenge(self, token: bytes) -> bytes:
        first = self._client_first = parse_client_first(token)
        check_authzid(self.name, first.authzid, first.username)
        found = self._found = self._users.scram_credential(self._scram, first.username)
        credential = found.credential
        self._server_first = ServerFirst(first.nonce + self._server_nonce, credential.salt, credential.iterations)
        return self._server_first.text().encode()

    def _verify(self, token: bytes) -> Authenticated:
        first, final, keys = self._client_first, parse_client_final(token), self._found.credential.keys
        if self._users.scram_credential(self._scram, first.username) != self._found:
            raise AuthenticationFailed(self.name, f"the credential of user {first.username!r} was changed meanwhile")
        if not self._is_our_nonce(final.nonce):
            raise AuthenticationFailed(self.name, "the final message has another nonce")
        if not hmac.compare_digest(final.channel_binding, first.gs2_header.encode()):
            raise AuthenticationFailed(self.name, "the final message has another GS2 header")
        message = auth_message(first.bare, self._server_first.text(), final.without_proof)
        has_proven = scram_keys.proves(self._scram, keys, message, final.proof)
        if not (has_proven and self._found.is_known):
            who = f"user {first.username!r}: wrong password" if self._found.is_known else "unknown user"
            raise AuthenticationFailed(self.name, who)
        signature = scram_keys.server_signature(self._scram, keys.server_key, message)
        return Authenticated(Principal(first.username), server_final(signature))
