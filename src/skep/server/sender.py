"""The outgoing half of a connection: sends the parts of responses, bytes and file regions, as fast as the client reads.

There are two ways to the socket. Bytes are written to the event loop's transport, which gathers what one turn of the
loop writes. A region is sent with ``sendfile``, past the transport, under three conditions:

- The transport has nothing left to write, or the region would overtake it. Otherwise the region is read and written to
  the transport.
- The socket has a second descriptor, because a loop does not report when the socket of one of its transports is
  writable.
- The region is in the page cache, or the whole loop would wait for the disk. Otherwise a thread reads it first.

Measurements against mmap and against read and write are in ``docs/decisions/0002-hot-path.md``.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sized
from concurrent.futures import Executor

from skep.base.errors import StorageError
from skep.base.files.file_region import FileRegion
from skep.broker.request import Parts
from skep.wire.primitives import INT32

PIECE_BYTES = 1024 * 1024
GATHER_BYTES = 64 * 1024
PIECES_PER_TURN = 4
"""How much one connection sends in a turn of the loop, however fast its client reads."""
PARTS_PER_PIECE = 128
"""So many small parts, each a system call, take as long as one piece."""
_TCP_CORK: int | None = getattr(socket, "TCP_CORK", None)


class Sender:
    """Owns the parts that were not yet written to the transport or the socket, and the second descriptor.

    Between turns of the loop nothing is gathered, and ``_unsent`` is empty unless one of ``_paused``, ``_reading``,
    ``_awaits_socket`` and ``_awaits_turn`` is set. ``on_idle`` is called when ``_unsent`` has become empty again.
    ``on_failure`` is called when a region cannot be read; nothing is sent after that.
    """

    __slots__ = (
        "_awaits_socket",
        "_awaits_turn",
        "_corked",
        "_executor",
        "_gathered",
        "_gathered_bytes",
        "_on_failure",
        "_on_idle",
        "_paused",
        "_position",
        "_reading",
        "_socket",
        "_transport",
        "_unsent",
        "is_encrypted",
        "region_bytes_sent",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        executor: Executor,
        on_idle: Callable[[], None],
        on_failure: Callable[[StorageError], None],
        *,
        is_encrypted: bool = False,
    ) -> None:
        """Under TLS everything goes through the transport, which encrypts it."""
        self._transport = transport
        self.is_encrypted = is_encrypted
        self._executor = executor
        self._on_idle = on_idle
        self._on_failure = on_failure
        self._unsent: deque[Sized] = deque()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self.region_bytes_sent = 0
        self._position = 0
        self._socket: socket.socket | None = None
        self._paused = False
        self._awaits_socket = False
        self._awaits_turn = False
        self._corked = False
        self._reading: asyncio.Future[bytes] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._unsent and not self._paused

    def send(self, parts: Parts) -> bool:
        """Frames and takes one response. Returns ``is_idle``. The caller must ``flush`` before the loop's turn ends.

        Small responses are gathered, because a write is a system call that wakes the client. A pipelining client gets
        one write with the responses to all requests that arrived with one read.
        """
        if len(parts) == 1 and isinstance(part := parts[0], bytes) and not self._unsent:
            self._gathered += (INT32.pack(len(part)), part)
            self._gathered_bytes += len(part)
            if self._gathered_bytes >= GATHER_BYTES:
                self.flush()
            return not self._paused
        self._gathered.append(INT32.pack(sum(map(len, parts))))
        if isinstance(first := parts[0], bytes):
            self._gathered.append(first)
            parts = parts[1:]
        self._unsent.append(b"".join(self._gathered))
        self._unsent += parts
        self._clear_gathered()
        self._pump()
        return self.is_idle

    def untaken_bytes(self) -> int:
        """Returns how many bytes are in memory for the client. File regions do not count."""
        unsent = sum(len(part) for part in self._unsent if isinstance(part, bytes))
        return unsent + self._transport.get_write_buffer_size()

    def flush(self) -> None:
        """Writes what was gathered to the transport."""
        if self._gathered:
            self._transport.write(b"".join(self._gathered))
            self._clear_gathered()

    def _clear_gathered(self) -> None:
        self._gathered.clear()
        self._gathered_bytes = 0

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._resume()

    def close(self) -> None:
        self._unsent.clear()
        self._clear_gathered()
        self._paused = True
        if self._reading is not None:
            self._reading.cancel()
        if self._socket is not None:
            self._stop_awaiting_socket()
            self._socket.close()
            self._socket = None
        # The callbacks belong to the connection that owns this sender. Breaking the cycle frees a closed connection at
        # once; the garbage collector may not look at it (``base/loop/garbage.py``).
        self._on_idle = self._on_failure = _do_nothing

    def _resume(self) -> None:
        self._pump()
        if self.is_idle:
            self._on_idle()

    def _pump(self) -> None:
        unsent = self._unsent
        left = PIECES_PER_TURN * PIECE_BYTES
        while unsent and not (self._paused or self._awaits_socket or self._awaits_turn or self._reading):
            if left <= 0:
                self._awaits_turn = True
                asyncio.get_running_loop().call_soon(self._next_turn)
                return
            part = unsent[0]
            left -= max(PIECE_BYTES // PARTS_PER_PIECE, min(PIECE_BYTES, len(part)))
            if isinstance(part, FileRegion):
                self._send_piece(part)
            else:
                assert isinstance(part, bytes)
                unsent.popleft()
                self._send_bytes(part, more=bool(unsent))
        if self._corked and not unsent:
            self._cork(False)

    def _next_turn(self) -> None:
        self._awaits_turn = False
        self._resume()

    def _send_bytes(self, part: bytes, *, more: bool) -> None:
        """Sends to the socket directly where possible, which costs less than through the transport.

        Before a region the transport must stay empty so that sendfile can follow. After a region the client has all but
        these few bytes and waits for them.
        """
        sent = 0
        if (more or self._socket is not None) and (direct := self._direct_socket()) is not None:
            try:
                sent = direct.send(part, socket.MSG_MORE if more else 0)
            except OSError:
                pass  # full, or broken; the transport finds out by itself
        if sent < len(part):
            self._transport.write(part[sent:] if sent else part)

    def _direct_socket(self) -> socket.socket | None:
        """Returns the socket with its second descriptor; None while the transport has something left to write."""
        if self.is_encrypted or self._transport.get_write_buffer_size():
            return None
        if self._socket is None:
            try:
                descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
            except OSError:
                return None  # out of descriptors: use the transport
            self._socket = socket.socket(fileno=descriptor)
        return self._socket

    def _send_piece(self, region: FileRegion) -> None:
        start = self._position
        size = min(PIECE_BYTES, len(region) - start)
        try:
            if not region.is_cached(start, size):
                self._read_in_thread(region, start, size)
            elif (direct := self._direct_socket()) is not None and region.has_descriptor:
                self._send_directly(region, direct, start, size)
            else:
                self._write_piece(region, region.read(start, size))
        except StorageError as error:
            self._fail(error)

    def _send_directly(self, region: FileRegion, direct: socket.socket, start: int, size: int) -> None:
        if not self._corked and len(self._unsent) > 1:
            self._cork(True)
        try:
            sent = region.send_to(direct.fileno(), start, size)
        except BlockingIOError:
            self._awaits_socket = True
            asyncio.get_running_loop().add_writer(direct.fileno(), self._socket_ready)
        except ConnectionError:
            # The client is gone; the transport finds out by itself. Nothing may follow a torn response.
            self.close()
        except OSError as error:
            self._fail(StorageError(f"{region}: {error.strerror}"))
        else:
            self._advance(region, sent)

    def _cork(self, corked: bool) -> None:
        """Makes the bytes behind a region leave with its end, not in a packet of their own that wakes the client.

        ``sendfile`` has no flag for this. Full packets leave at once all the same.
        """
        if self._socket is not None and _TCP_CORK is not None:
            self._corked = corked
            with contextlib.suppress(OSError):  # broken; the transport finds out by itself
                self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_CORK, corked)

    def _socket_ready(self) -> None:
        self._stop_awaiting_socket()
        self._resume()

    def _stop_awaiting_socket(self) -> None:
        if self._awaits_socket and self._socket is not None:
            self._awaits_socket = False
            asyncio.get_running_loop().remove_writer(self._socket.fileno())

    def _read_in_thread(self, region: FileRegion, start: int, size: int) -> None:
        """Waits for the disk in a thread, so that only this connection waits."""
        self._reading = asyncio.get_running_loop().run_in_executor(self._executor, region.read, start, size)
        self._reading.add_done_callback(lambda done: self._piece_read(region, done))

    def _piece_read(self, region: FileRegion, done: "asyncio.Future[bytes]") -> None:
        self._reading = None
        if done.cancelled() or not self._unsent:
            return  # closed meanwhile
        error = done.exception()
        if isinstance(error, StorageError):
            self._fail(error)
            return
        self._write_piece(region, done.result())
        self._resume()

    def _write_piece(self, region: FileRegion, piece: bytes) -> None:
        self._advance(region, len(piece))
        self._transport.write(piece)

    def _advance(self, region: FileRegion, size: int) -> None:
        self.region_bytes_sent += size
        self._position += size
        if self._position == len(region):
            self._position = 0
            self._unsent.popleft()

    def _fail(self, error: StorageError) -> None:
        on_failure = self._on_failure
        self.close()
        on_failure(error)


def _do_nothing(*_: object) -> None:
    """Stands in for the callbacks of a closed sender."""
