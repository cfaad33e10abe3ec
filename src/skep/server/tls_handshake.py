"""The TLS handshake of one client, before its connection exists.

Accepting first and shaking hands afterwards, rather than leaving both to the event loop, lets the broker count the
handshakes under way, use a certificate that has been renewed, and say why one has failed.
"""

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import OptionError
from skep.broker.request import CloseConnection
from skep.security.principal import ANONYMOUS, Principal
from skep.security.tls.distinguished_name import subject_of
from skep.security.tls.mapping_rules import MappingRules
from skep.server.connection import Connection

LOOK_EVERY_S = 0.1
"""How often to look whether a client that waits for its turn is still there."""
_LEFT = getattr(select, "POLLRDHUP", 0)
"""Its end of the stream, also behind bytes that are not read yet. Only Linux has it; others tell of a reset only."""

_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "BAD_LENGTH"}
)
_REASONS = {
    "HTTP_REQUEST": "it sent HTTP",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, which ssl.client.auth=required demands",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the CA of the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that the broker's certificate has expired",
    "NO_SHARED_CIPHER": "it has no cipher suite in common with the broker",
    "UNSUPPORTED_PROTOCOL": "it has no version of TLS in common with the broker (ssl.enabled.protocols)",
    "NO_PROTOCOLS_AVAILABLE": "it has no version of TLS in common with the broker (ssl.enabled.protocols)",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it has no version of TLS in common with the broker (ssl.enabled.protocols)",
}


class HandshakeOwner(Protocol):
    """The socket server as a handshake sees it."""

    def admit_newcomer(self, newcomer: "TlsHandshake") -> bool:
        """Returns False if there are too many connections."""
        ...

    def forget_newcomer(self, newcomer: "TlsHandshake") -> None: ...

    def handed_over(self, newcomer: "TlsHandshake", connection: Connection) -> None:
        """The handshake has ended, and the connection takes its place."""
        ...

    def report(self, peer: str, reason: str) -> None:
        """Logs why a client was refused, unless there are too many such lines."""
        ...


class TlsEntrance(Protocol):
    """The listener as a handshake sees it."""

    name: str
    security: SecurityConfig
    mapping_rules: MappingRules
    tls_context: Callable[[], ssl.SSLContext] | None

    def connection(self, handshake: "TlsHandshake | None" = None) -> Connection: ...


class TlsHandshake:
    """Owns the socket until the handshake ends. Then the connection does, or nobody."""

    def __init__(self, owner: HandshakeOwner, entrance: TlsEntrance, accepted: socket.socket) -> None:
        self._owner = owner
        self._entrance = entrance
        self.listener_name = entrance.name
        self._socket = accepted
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        try:
            address = accepted.getpeername()
            self.host, self.peer = address[0], f"{address[0]}:{address[1]}"
        except OSError:  # it has gone again
            self.host = self.peer = "?"
        self.wait_s = 0.0
        """How long to wait before the handshake begins, for an address that connects too often."""

    def begin(self) -> None:
        if self._owner.admit_newcomer(self):
            self._task = asyncio.get_running_loop().create_task(self._shake_hands())
        else:
            self._is_over = True
            self._socket.close()

    async def _shake_hands(self) -> None:
        loop, entrance = asyncio.get_running_loop(), self._entrance
        assert entrance.tls_context is not None
        try:
            if self.wait_s and not await self._is_there_after_wait():
                return
            await loop.connect_accepted_socket(
                lambda: entrance.connection(self),
                self._socket,
                ssl=entrance.tls_context(),
                ssl_handshake_timeout=entrance.security.handshake_timeout_ms / 1000,
            )
        except OSError as error:
            if not self._is_over:
                self._owner.report(self.peer, _failure(error))
        finally:
            self._end()

    async def _is_there_after_wait(self) -> bool:
        """Waits for the client's turn. Returns False as soon as the client has left."""
        monotonic = asyncio.get_running_loop().time
        until = monotonic() + self.wait_s
        # Nobody reads the socket yet, and its first bytes are for the handshake.
        look = select.poll()
        look.register(self._socket, _LEFT)
        while (left_s := until - monotonic()) > 0:
            await asyncio.sleep(min(left_s, LOOK_EVERY_S))
            if look.poll(0):
                return False
        return True

    def ended(self, connection: Connection) -> None:
        """The connection has taken over."""
        self._is_over = True
        self._owner.handed_over(self, connection)

    def principal(self, ssl_object: ssl.SSLObject) -> Principal:
        """Returns who the client is by its certificate. Raises CloseConnection if no rule says it."""
        certificate = ssl_object.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            return self._entrance.mapping_rules.principal(subject_of(certificate))
        except (OptionError, ValueError) as error:
            raise CloseConnection(str(error)) from None

    def hang_up(self, reason: str) -> None:
        self._owner.report(self.peer, reason)
        self.close()

    def close(self) -> None:
        self._end()
        if self._task is not None:
            self._task.cancel()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._owner.forget_newcomer(self)
            self._socket.close()


def _failure(error: OSError) -> str:
    """Returns what went wrong, in the words of the operator of a broker."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the TLS handshake failed: its certificate is not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "unknown"
        if reason in _NOT_TLS:
            return (
                "it does not speak TLS, and this listener does; the client needs security.protocol=SSL or SASL_SSL "
                f"({_REASONS.get(reason, reason)})"
            )
        return f"the TLS handshake failed: {_REASONS.get(reason, reason)}"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "it did not finish the TLS handshake in time (skep.handshake.timeout.ms)"
    return "it closed the connection during the TLS handshake; perhaps it does not trust the broker's certificate"
