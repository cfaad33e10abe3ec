"""Addresses as options write them: ``host:port``, or ``NAME://host:port`` with the name of a listener."""

import ipaddress
import re
from typing import NamedTuple

from skep.base.errors import OptionError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
"""Where a broker listens, and where commands look for one, if nothing else is said."""

_NAMED = re.compile(r"(?:(?P<name>[A-Za-z0-9_.-]+)://)?(?P<address>[^/,]*)")


class NamedAddress(NamedTuple):
    """An address of ``listeners``. The name is in upper case, and empty if none was given."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return (
            f"{self.name}://{show_address(self.host, self.port)}" if self.name else show_address(self.host, self.port)
        )


def parse_addresses(option: str, text: str) -> list[NamedAddress]:
    """Parses a list of ``host:port`` and ``NAME://host:port``. Raises OptionError."""
    return [_parse(option, text, one.strip()) for one in text.split(",")]


def _parse(option: str, text: str, one: str) -> NamedAddress:
    found = _NAMED.fullmatch(one)
    host, colon, port = found["address"].rpartition(":") if found else ("", "", "")
    if found is None or not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise OptionError(
            f"{option}={text}: expected host:port, e.g. 127.0.0.1:9092, or a list of NAME://host:port, "
            "e.g. SASL_SSL://0.0.0.0:9093"
        )
    return NamedAddress((found["name"] or "").upper(), host.removeprefix("[").removesuffix("]"), int(port))


def show_address(host: str, port: int) -> str:
    """Returns the address as text, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name other than ``localhost`` may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
