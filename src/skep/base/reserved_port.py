"""A port that is chosen before the server starts that is to listen on it."""

import socket


class ReservedPort:
    """A free port that stays ours while the server on it is away: before it starts, between a kill and a restart.

    The socket is bound and never listens. Linux lets the server bind the same port beside it, because both set
    SO_REUSEADDR and only one listens, and gives the port to nobody who asks for any free one, nor to an outgoing
    connection. Whoever connects while the server is away is refused, as without the reservation.
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
