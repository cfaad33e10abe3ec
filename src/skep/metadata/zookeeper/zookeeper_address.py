"""Where a ZooKeeper is: ``zk://host:port,host:port/chroot``. Apart from the store, so that options can check it."""

from typing import NamedTuple

from skep.base.errors import OptionError

SCHEME = "zk://"
DEFAULT_PORT = 2181
DEFAULT_CHROOT = "/skep"


class ZooKeeperAddress(NamedTuple):
    """The servers of an ensemble, and the node below which everything of this cluster lies; never the root."""

    hosts: tuple[str, ...]
    chroot: str

    @classmethod
    def parse(cls, text: str) -> "ZooKeeperAddress":
        """``zk://a,b:2182`` is ``a:2181``, ``b:2182`` and ``/skep``. OptionError for what is no such address."""
        servers, _, path = text.removeprefix(SCHEME).partition("/")
        hosts = tuple(_with_port(server.strip(), text) for server in servers.split(","))
        parts = [part for part in path.split("/") if part]
        if not text.startswith(SCHEME) or any(part in (".", "..") for part in parts):
            raise _wrong(text)
        return cls(hosts, "/" + "/".join(parts) if parts else DEFAULT_CHROOT)

    def __str__(self) -> str:
        return f"ZooKeeper {','.join(self.hosts)}{self.chroot}"


def _with_port(server: str, text: str) -> str:
    # An IPv6 address stands in brackets: [::1]:2181.
    host, colon, port = server.rpartition(":") if not server.endswith("]") else (server, "", "")
    if not colon:
        host, port = server, str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise _wrong(text)
    return f"{host}:{port}"


def _wrong(text: str) -> OptionError:
    return OptionError(f"{text!r} is no address of a ZooKeeper, such as zk://host1:2181,host2:2181/skep")
