"""A port that leads to a broker and counts what goes through it: connections, and bytes that the broker sends."""

import socket
import threading
from contextlib import suppress
from types import TracebackType

HOST = "127.0.0.1"
_PIECE = 1 << 16


class CountingProxy:
    """Owns the listening socket and a thread for each direction of each connection; they end with the connection."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()
        self._target = ("", 0)
        self._connections = self._bytes = 0

    def lead_to(self, address: str) -> None:
        """Begins to take connections."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        threading.Thread(target=self._accept, daemon=True).start()

    def counted(self) -> tuple[int, int]:
        """Connections that were made, and bytes that came from the broker, since this was asked last."""
        with self._lock:
            found = self._connections, self._bytes
            self._connections = self._bytes = 0
            return found

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                broker = socket.create_connection(self._target)
                with self._lock:
                    self._connections += 1
                for source, sink, is_answer in ((client, broker, False), (broker, client, True)):
                    threading.Thread(target=self._carry, args=(source, sink, is_answer), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                with self._lock:
                    self._bytes += len(piece) if is_answer else 0
                sink.sendall(piece)
        # The other direction ends too: its socket is closed on both sides.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "CountingProxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Closing alone does not wake a thread that waits in accept.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
