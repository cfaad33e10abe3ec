"""The socket of one listener. It makes a connection of each client, after the TLS handshake if the listener has one."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from skep.base.config.listeners import ListenerOptions
from skep.base.config.security_config import PLAINTEXT, SecurityConfig
from skep.base.errors import StartupError
from skep.security.sasl.mechanisms import Mechanisms
from skep.security.tls.mapping_rules import MappingRules
from skep.server.connection import Connection, ConnectionOwner
from skep.server.tls_handshake import HandshakeOwner, TlsHandshake

logger = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPT_PAUSE_S = 0.1


class AcceptorOwner(ConnectionOwner, HandshakeOwner, Protocol):
    """The socket server as its acceptors see it."""


class Acceptor:
    """Owns the listening socket. What it asks of clients may change at run time, for those that connect afterwards."""

    def __init__(
        self,
        owner: AcceptorOwner,
        options: ListenerOptions,
        *,
        mechanisms: Mechanisms | None = None,
        tls_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """``mechanisms`` are those of SASL, None without it; ``tls_context`` returns the current one."""
        self.owner = owner
        self.name = options.name
        self.is_local = options.is_local
        self.security = options.security
        self.mechanisms = mechanisms
        self.tls_context = tls_context
        self.mapping_rules = MappingRules(options.security.ssl_principal_mapping_rules)
        self._server: asyncio.Server | None = None
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []

    def reconfigure(self, security: SecurityConfig) -> None:
        """Takes the options for clients that connect from now on."""
        self.security = security
        self.mapping_rules = MappingRules(security.ssl_principal_mapping_rules)

    async def bind(self, host: str, port: int) -> int:
        """Binds the port and returns its number, also for port 0. Raises StartupError when it cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self.connection, host or None, port, backlog=BACKLOG, start_serving=False
            )
        except UnicodeError as error:
            # E.g. "a..b": Python does not pass it to the resolver.
            raise StartupError(f"cannot listen on {host}:{port}: not a valid host name") from error
        except OSError as error:
            # The number of a gaierror is not an errno; its text is the resolver's.
            is_unresolved = isinstance(error, socket.gaierror)
            reason = os.strerror(error.errno) if error.errno and not is_unresolved else error.strerror or str(error)
            advice = "; choose another with --listen" if error.errno == errno.EADDRINUSE else ""
            raise StartupError(f"cannot listen on {host}:{port}: {reason.lower()}{advice}") from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def connection(self, handshake: TlsHandshake | None = None) -> Connection:
        return Connection(self.owner, self, handshake)

    async def serve(self) -> None:
        assert self._server is not None
        if self.tls_context is None:
            await self._server.start_serving()
            return
        # The loop's server would shake hands by itself. It has bound the sockets, and accepts nothing.
        loop = asyncio.get_running_loop()
        for bound in self._server.sockets:
            listening = socket.socket(fileno=os.dup(bound.fileno()))
            listening.setblocking(False)
            listening.listen(BACKLOG)
            self._listening.append(listening)
            self._accepting.append(loop.create_task(self._accept_all(listening), name=f"accept {self.name}"))

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                # Out of descriptors, or the client has gone again.
                if error.errno != errno.ECONNABORTED:
                    logger.error("listener %s cannot accept a connection: %s", self.name, error.strerror)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            TlsHandshake(self.owner, self, accepted).begin()

    def close(self) -> None:
        for task in self._accepting:
            task.cancel()
        for listening in self._listening:
            listening.close()
        if self._server is not None:
            self._server.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._accepting, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()


def plaintext(owner: AcceptorOwner, host: str = "127.0.0.1") -> Acceptor:
    """Returns an acceptor for anybody who reaches ``host``."""
    return Acceptor(owner, ListenerOptions(PLAINTEXT, PLAINTEXT, host, 0, SecurityConfig()))
