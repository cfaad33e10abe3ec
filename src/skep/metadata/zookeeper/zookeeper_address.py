"""The address of a ZooKeeper: ``zk://host:port,host:port/chroot``. Options check it without the store."""

from typing import NamedTuple

from skep.base.errors import OptionError

SCHEME = "zk://"
DEFAULT_PORT = 2181
DEFAULT_CHROOT = "/skep"


class ZooKeeperAddress(NamedTuple):
    """The servers of an ensemble, and the node below which all nodes of this cluster lie; never the root."""

    hosts: tuple[str, ...]
    chroot: str

    @classmethod
    def parse(cls, text: str) -> "ZooKeeperAddress":
        """Parses ``zk://a,b:2182`` as ``a:2181``, ``b:2182`` and ``/skep``. Raises OptionError for anything else."""
        servers, _, path = text.removeprefix(SCHEME).partition("/")
        hosts = tuple(_with_port(server.strip(), text) for server in servers.split(","))
        parts = [part for part in path.split("/") if part]
        if not text.startswith(SCHEME) or any(part in (".", "..") for part in parts):
            raise _wrong(text)
        return cls(hosts, "/" + "/".join(parts) if parts else DEFAULT_CHROOT)

    def __str__(self) -> str:
        return f"ZooKeeper {','.join(self.hosts)}{self.chroot}"


def _with_port(server: str, text: str) -> str:
    # IPv6 addresses have brackets: [::1]:2181.
    host, colon, port = server.rpartition(":") if not server.endswith("]") else (server, "", "")
    if not colon:
        host, port = server, str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise _wrong(text)
    return f"{host}:{port}"


def _wrong(text: str) -> OptionError:
    return OptionError(f"{text!r} is not a ZooKeeper address; expected for example zk://host1:2181,host2:2181/skep")
