"""The listeners of a broker, out of ``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map``.

A broker that listens where other machines reach it, and asks nobody who they are, does not start. Whoever wants that
says so with ``skep.insecure``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skep.base.addresses import NamedAddress, is_loopback, parse_addresses, show_address
from skep.base.config.broker_config import BrokerConfig
from skep.base.config.security_config import (
    LISTENER_PREFIX,
    PLAINTEXT,
    SECURITY_PROTOCOLS,
    SecurityConfig,
    security_of_listener,
)
from skep.base.errors import OptionError
from skep.base.unknown_names import did_you_mean


@dataclass(frozen=True)
class ListenerOptions:
    """One listener. ``advertised`` is the address for clients; None: that of the socket."""

    name: str
    protocol: str
    host: str
    port: int
    security: SecurityConfig
    advertised: tuple[str, int] | None = None

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def authenticates(self) -> bool:
        """Whether everybody who connects here has shown who they are."""
        return self.uses_sasl or (self.uses_tls and self.security.ssl_client_auth == "required")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


@dataclass(frozen=True)
class Listeners:
    """All listeners of a broker, and the one that brokers use among themselves."""

    all: tuple[ListenerOptions, ...]
    inter_broker: ListenerOptions


def read_listeners(config: BrokerConfig) -> Listeners:
    """Raises OptionError for listeners that contradict each other, or would let strangers in."""
    addresses = parse_addresses("listeners", config.listeners)
    addresses = [one._replace(name=one.name or PLAINTEXT) for one in addresses]
    _check_each_once(config.listeners, addresses)
    protocols = _protocols(config.security)
    advertised = _advertised(config, addresses)
    _check_overrides(config, addresses)
    found = []
    for name, host, port in addresses:
        if name not in protocols:
            raise OptionError(
                f"listeners={config.listeners}: listener.security.protocol.map has no protocol for {name}; add "
                f"{name}:SASL_SSL to it"
            )
        security = security_of_listener(config.security, config.of_listeners, name)
        found.append(ListenerOptions(name, protocols[name], host, port, security, advertised.get(name)))
    listeners = Listeners(tuple(found), _inter_broker(config.security, found))
    _check_exposure(config, listeners.all)
    return listeners


def _check_each_once(text: str, addresses: Sequence[NamedAddress]) -> None:
    names = [one.name for one in addresses]
    if twice := {name for name in names if names.count(name) > 1}:
        raise OptionError(f"listeners={text}: the name {min(twice)} is given twice; each listener needs its own")
    ports = [one.port for one in addresses if one.port]
    if used := {port for port in ports if ports.count(port) > 1}:
        raise OptionError(f"listeners={text}: port {min(used)} is given twice; each listener needs its own")


def _protocols(security: SecurityConfig) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for pair in security.listener_security_protocol_map:
        name, colon, protocol = pair.partition(":")
        protocol = protocol.strip().upper()
        if not colon or protocol not in SECURITY_PROTOCOLS:
            raise OptionError(
                f"listener.security.protocol.map={pair}: expected NAME:PROTOCOL, with one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        protocols[name.strip().upper()] = protocol
    return protocols


def _advertised(config: BrokerConfig, addresses: Sequence[NamedAddress]) -> dict[str, tuple[str, int]]:
    text = config.advertised_listeners
    if not text:
        return {}
    given = parse_addresses("advertised.listeners", text)
    # A single listener needs no name.
    only = addresses[0].name if len(addresses) == 1 and len(given) == 1 else PLAINTEXT
    given = [one._replace(name=one.name or only) for one in given]
    names = [one.name for one in addresses]
    for one in given:
        if one.name not in names:
            raise OptionError(
                f"advertised.listeners={text}: there is no listener {one.name}{did_you_mean(one.name, names)}; "
                f"listeners has {', '.join(names)}"
            )
        if one.host in ("", "0.0.0.0", "::"):
            raise OptionError(f"advertised.listeners={text}: nobody can connect to {one.host or 'an empty host'}")
    return {one.name: (one.host, one.port) for one in given}


def _check_overrides(config: BrokerConfig, addresses: Sequence[NamedAddress]) -> None:
    names = [one.name.lower() for one in addresses]
    for option in config.of_listeners:
        name = option.removeprefix(LISTENER_PREFIX).partition(".")[0]
        if name not in names:
            raise OptionError(f"{option}: there is no listener {name}{did_you_mean(name, names)}")


def _inter_broker(security: SecurityConfig, listeners: Sequence[ListenerOptions]) -> ListenerOptions:
    name = security.inter_broker_listener_name.upper()
    if name:
        for one in listeners:
            if one.name == name:
                return one
        raise OptionError(
            f"inter.broker.listener.name={name}: there is no such listener; listeners has "
            f"{', '.join(one.name for one in listeners)}"
        )
    if len(listeners) == 1:
        return listeners[0]
    protocol = security.security_inter_broker_protocol
    suitable = [one for one in listeners if one.name == protocol] or [
        one for one in listeners if one.protocol == protocol
    ]
    if len(suitable) != 1:
        raise OptionError(
            f"security.inter.broker.protocol={protocol}: {'several' if suitable else 'no'} listeners have it; choose "
            f"one of {', '.join(one.name for one in listeners)} with inter.broker.listener.name"
        )
    return suitable[0]


def _check_exposure(config: BrokerConfig, listeners: Iterable[ListenerOptions]) -> None:
    if config.security.insecure:
        return
    for one in listeners:
        if not one.is_local and not one.authenticates:
            shown = show_address(one.host, one.port)
            raise OptionError(
                f"listeners={config.listeners}: {one.protocol} on {shown} would let everybody who reaches it read, "
                "write and delete everything; use SASL_SSL (docs/SECURITY.md), or say --insecure (skep.insecure=true)"
            )
