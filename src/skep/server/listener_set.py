"""The listeners of a broker as its options want them: sockets, certificates, and the addresses that are advertised."""

import asyncio
import logging
import socket
from collections.abc import Callable

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.listeners import ListenerOptions, Listeners
from skep.base.config.security_config import NO_LIMIT, connection_limits, security_of_listener
from skep.base.errors import OptionError
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import Endpoint
from skep.security.principal import Principal
from skep.security.security import Security
from skep.security.tls.listener_tls import ListenerTls
from skep.security.users import users_with_revoked_credentials
from skep.server.acceptor import Acceptor
from skep.server.socket_server import SocketServer

logger = logging.getLogger(__name__)

EVERYWHERE = ("", "0.0.0.0", "::")


class ListenerSet:
    """Owns an acceptor for each listener, and the certificate of those with TLS."""

    def __init__(self, server: SocketServer, listeners: Listeners, security: Security) -> None:
        """Raises OptionError or StartupError for certificates that cannot be used."""
        self._server = server
        self._listeners = listeners
        self._tls = {one.name: ListenerTls(one.name, one.security) for one in listeners.all if one.uses_tls}
        self._acceptors = {one.name: self._acceptor(one, security) for one in listeners.all}

    def _acceptor(self, options: ListenerOptions, security: Security) -> Acceptor:
        tls = self._tls.get(options.name)
        mechanisms = security.mechanisms(options) if options.uses_sasl else None
        return Acceptor(
            self._server,
            options,
            mechanisms=mechanisms,
            tls_context=None if tls is None else tls.current,
        )

    def on_renewed(self, listener: str, renewed: Callable[[], None]) -> None:
        """``renewed`` is called when the certificate of the listener was replaced."""
        if (tls := self._tls.get(listener)) is not None:
            tls.on_change = renewed

    async def bind(self) -> tuple[Endpoint, ...]:
        """Binds all ports. Returns the advertised addresses, in the order of ``listeners``. Raises StartupError."""
        endpoints = []
        for options in self._listeners.all:
            acceptor = self._acceptors[options.name]
            # Before it is bound, so that it is closed if another one cannot be.
            self._server.add(acceptor)
            port = await acceptor.bind(options.host, options.port)
            host = socket.gethostname() if options.host in EVERYWHERE else options.host
            if options.advertised is not None:
                host, port = options.advertised[0], options.advertised[1] or port
            endpoints.append(Endpoint(options.name, host, port))
        return tuple(endpoints)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Takes options that have changed at run time."""
        security = config.security
        self._server.max_connections_per_host = security.max_connections_per_ip
        self._server.max_connections_by_host = connection_limits(security.max_connections_per_ip_overrides)
        self._server.max_connections_per_principal = security.max_connections_per_principal
        self._server.max_unauthenticated = security.max_unauthenticated_connections
        self._server.handshake_timeout_ms = security.handshake_timeout_ms
        self._server.connection_rates = {one.name: self._connection_rates(config, one) for one in self._listeners.all}
        for options in self._listeners.all:
            own = security_of_listener(security, config.of_listeners, options.name)
            try:
                self._acceptors[options.name].reconfigure(own)
            except OptionError as error:
                logger.error("listener %s keeps its options: %s", options.name, error)
                continue
            if (tls := self._tls.get(options.name)) is not None:
                tls.reconfigure(own)

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Hangs up on users whose password was changed or who are gone: they no longer prove what they have proven."""
        for user in users_with_revoked_credentials(old, new):
            self._server.hang_up_on(Principal(user), "its credentials have changed")

    def _connection_rates(self, config: BrokerConfig, options: ListenerOptions) -> dict[str, float]:
        """Returns the rates for a listener's connections by who shares them: the listener's own, and the broker's.

        Brokers must reach each other, so as in Kafka a listener of theirs has only its own.
        """
        general = config.security.max_connection_creation_rate
        own = security_of_listener(config.security, config.of_listeners, options.name).max_connection_creation_rate
        is_for_brokers = len(self._listeners.all) > 1 and options is self._listeners.inter_broker
        rates: dict[str, float] = {}
        if general != NO_LIMIT and not is_for_brokers:
            rates[""] = general
        if own not in (NO_LIMIT, general):
            rates[options.name] = own
        return rates

    async def check_certificates(self) -> None:
        """Reads certificates again whose files have changed."""
        await asyncio.gather(*(tls.check_files() for tls in self._tls.values()))

    async def warn_of_expiry(self) -> None:
        for tls in self._tls.values():
            tls.warn_of_expiry()
