"""Where hostile connections enter, and how far they have come when they turn hostile."""

import random
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from tests.fuzz import sasl_dialog
from tests.fuzz.messages import REQUESTS, SASL, TLS, Dialog

PATIENCE_S = 10.0
USER, PASSWORD = "fuzz", "fuzz-password"


@dataclass
class Line:
    """One open connection."""

    socket: socket.socket
    dialog: Dialog = field(default_factory=Dialog)


class Door:
    """A listener without authentication."""

    kinds: ClassVar[Mapping[str, int]] = REQUESTS
    leaves: ClassVar[float] = 0.02
    """How often a connection is dropped after a message."""

    def __init__(self, address: tuple[str, int], source: random.Random) -> None:
        self._address = address
        self.random = source

    def open(self) -> Line:
        """A non-blocking connection. ConnectionRefusedError when the broker is gone."""
        line = Line(self._connect())
        line.socket.setblocking(False)
        return line

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class BeforeAuthentication(Door):
    """A listener with SASL. A connection turns hostile at once, after the handshake, or after the challenge."""

    kinds: ClassVar[Mapping[str, int]] = {**{kind: max(1, weight // 4) for kind, weight in REQUESTS.items()}, **SASL}

    def open(self) -> Line:
        line = Line(self._connect())
        self._greet(line)
        line.socket.setblocking(False)
        return line

    def _greet(self, line: Line) -> None:
        line.dialog.mechanism = self.random.choice(sasl_dialog.MECHANISMS[:3])
        stage = self.random.randrange(3)
        if stage >= 1:
            sasl_dialog.begin(line.socket, line.dialog.mechanism)
        if stage >= 2 and line.dialog.mechanism.startswith("SCRAM"):
            user = self.random.choice((USER, "nobody"))
            first, line.dialog.bare = sasl_dialog.client_first(user, f"{self.random.getrandbits(64):x}")
            _, line.dialog.challenge = sasl_dialog.token_exchange(line.socket, first)


class AfterAuthentication(Door):
    """A listener with SASL, and a user that is who it says."""

    kinds: ClassVar[Mapping[str, int]] = {**{kind: weight * 3 for kind, weight in REQUESTS.items()}, **SASL}

    def __init__(self, address: tuple[str, int], source: random.Random, user: str = USER) -> None:
        super().__init__(address, source)
        self._user = user

    def open(self) -> Line:
        line = Line(self._connect())
        sasl_dialog.scram_login(line.socket, self._user, PASSWORD)
        line.socket.setblocking(False)
        return line


class TlsGarbage(Door):
    """A listener with TLS, and no TLS."""

    kinds = TLS
    # Most damage looks like a handshake whose rest is still to come.
    leaves = 0.3


class InsideTls(BeforeAuthentication):
    """A listener with TLS and SASL; the handshake of TLS is done."""

    def __init__(self, address: tuple[str, int], source: random.Random, authority: str) -> None:
        super().__init__(address, source)
        self._context = ssl.create_default_context(cafile=authority)

    def _connect(self) -> socket.socket:
        return self._context.wrap_socket(super()._connect(), server_hostname="localhost")
