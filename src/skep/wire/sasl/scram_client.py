"""The client's side of SCRAM."""

import hmac
import secrets

from skep.base.secret import Secret
from skep.wire.sasl import scram_keys
from skep.wire.sasl.sasl_error import SaslError
from skep.wire.sasl.scram_keys import Scram
from skep.wire.sasl.scram_messages import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    auth_message,
    client_first_bare,
    final_without_proof,
    parse_server_final,
    parse_server_first,
    with_proof,
)

_GS2_HEADER = "n,,"


class ScramClient:
    """One login. ``next`` is called with the server's first message, then with its final one.

    The login has succeeded only when ``is_done``: then the server has proven that it knows the keys of this user, so a
    server that accepts everybody is found out.
    """

    def __init__(self, scram: Scram, username: str, password: Secret, nonce: str | None = None) -> None:
        self._scram, self._password = scram, password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._bare = client_first_bare(username, self._nonce)
        self._expected_signature: bytes | None = None
        self.is_done = False

    def first(self) -> bytes:
        return (_GS2_HEADER + self._bare).encode()

    def next(self, challenge: bytes) -> bytes | None:
        """Derives the key from the password, which takes milliseconds, when it is called first."""
        if self._expected_signature is None:
            return self._final(challenge)
        if not hmac.compare_digest(parse_server_final(challenge), self._expected_signature):
            raise SaslError("the server does not know the password: its signature is wrong")
        self.is_done = True
        return None

    def _final(self, challenge: bytes) -> bytes:
        server = parse_server_first(challenge)
        if not server.nonce.startswith(self._nonce) or len(server.nonce) == len(self._nonce):
            raise SaslError("the server's nonce does not continue the client's")
        if not server.salt:
            raise SaslError("the server's salt is empty")
        if not MIN_ITERATIONS <= server.iterations <= MAX_ITERATIONS:
            raise SaslError(
                f"the server wants {server.iterations} iterations, not {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        without_proof = final_without_proof(_GS2_HEADER, server.nonce)
        salted = scram_keys.salted_password(self._scram, self._password.reveal(), server.salt, server.iterations)
        message = auth_message(self._bare, challenge.decode(), without_proof)
        self._expected_signature = scram_keys.server_signature(
            self._scram, scram_keys.server_key_of(self._scram, salted), message
        )
        return with_proof(without_proof, scram_keys.client_proof(self._scram, salted, message))
