"""Addresses as options write them: ``host:port``."""

from skep.base.errors import OptionError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
"""Where a broker listens, and where commands look for one, if nothing else is said."""


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Parses ``host:port``, also with the prefix ``PLAINTEXT://`` and with an IPv6 address in brackets."""
    address = text.removeprefix("PLAINTEXT://")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or "://" in host or "," in host:
        raise OptionError(f"{option}={text}: expected one host:port, e.g. 127.0.0.1:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def show_address(host: str, port: int) -> str:
    """Returns the address as text, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
