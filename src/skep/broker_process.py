"""A broker in a process of its own, as its parent sees it: how it is started, when it is ready, which port is its own.

The child is ``python -m skep.embedded``. Its options go to its standard input, as one line of JSON: a password among
them would be there for everybody to see in the list of processes. That pipe then stays open for as long as the parent
lives. When it ends, so does the child, whatever the parent died of.
"""

import json
import signal
import socket
import sys
from collections.abc import Mapping

READY = " ready on "


def command(options: Mapping[str, str]) -> list[str]:
    """What to run. The arguments after the module say nothing new; they are there for who looks at the processes."""
    told = [f"{name}={options[name]}" for name in ("node.id", "listeners") if name in options]
    return [sys.executable, "-m", "skep.embedded", *told]


def first_line(options: Mapping[str, str]) -> bytes:
    """What the child's standard input begins with."""
    return json.dumps(dict(options)).encode() + b"\n"


def ready_address(line: str) -> tuple[str, int] | None:
    """The address in a broker's ready line; None for any other line."""
    if READY not in line:
        return None
    host, _, port = line.split(READY)[1].split(",")[0].rpartition(":")
    return host, int(port)


def how_it_ended(exit_code: int) -> str:
    """``was killed by SIGKILL``, ``ended with exit code 2``."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}"


class ReservedPort:
    """A free port that stays ours while the broker on it is away, between a kill and a restart.

    The socket is bound and never listens. Linux lets the broker bind the same port beside it, because both set
    SO_REUSEADDR and only one listens, and gives the port to nobody who asks for any free one, nor to an outgoing
    connection. Whoever connects while the broker is away is refused, as without the reservation.
    """

    def __init__(self, host: str) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except BaseException:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()
