"""A port that is reserved before its server starts."""

import socket


class ReservedPort:
    """A free port that stays reserved while no server listens on it: before a start, between a kill and a restart.

    The socket is bound and never listens. Linux lets the server bind the same port, because both set SO_REUSEADDR and
    only one listens. It gives the port neither to a bind to any free port nor to an outgoing connection. Connections
    while the server is away are refused, as without the reservation.
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
