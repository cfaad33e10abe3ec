"""``host:port`` as options spell it."""

from skep.base.errors import OptionError


def parse_address(option: str, text: str) -> tuple[str, int]:
    """``host:port``, also with Kafka's ``PLAINTEXT://`` in front and with an IPv6 address in brackets."""
    address = text.removeprefix("PLAINTEXT://")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or "://" in host or "," in host:
        raise OptionError(f"{option}={text}: expected one host:port, e.g. 127.0.0.1:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def show_address(host: str, port: int) -> str:
    """The other way round."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
