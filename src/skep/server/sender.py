"""The outgoing half of a connection: answers as parts, bytes or regions of files, sent as fast as the client reads.

Regions are read with pread and written like other bytes. Sending them by sendfile was measured and is not faster on
this path, and mapping them is, by little, but turns a disk error into the death of the process; see
``docs/decisions/0002-hot-path.md``.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sized
from concurrent.futures import Executor

from skep.base.errors import StorageError
from skep.broker.request import FileRegion, Parts
from skep.wire.primitives import INT32

PIECE_BYTES = 512 * 1024


class Sender:
    """Owns the parts that were not yet given to the transport.

    Between calls, when neither ``_paused`` nor ``_reading`` holds, ``_unsent`` is empty. ``on_idle`` is called when it
    becomes empty after it was not; ``on_failure`` when a region cannot be read, after which nothing is sent.
    """

    __slots__ = ("_executor", "_on_failure", "_on_idle", "_paused", "_position", "_reading", "_transport", "_unsent")

    def __init__(
        self,
        transport: asyncio.Transport,
        executor: Executor,
        on_idle: Callable[[], None],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._transport = transport
        self._executor = executor
        self._on_idle = on_idle
        self._on_failure = on_failure
        self._unsent: deque[Sized] = deque()
        self._position = 0
        self._paused = False
        self._reading: asyncio.Future[bytes] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._unsent and not self._paused

    def send(self, parts: Parts) -> None:
        """Frames one answer and sends it, or as much of it as the client takes now."""
        if len(parts) == 1 and isinstance(part := parts[0], bytes) and not self._unsent:
            self._transport.write(INT32.pack(len(part)) + part)
            return
        first, *others = parts
        length = INT32.pack(sum(map(len, parts)))
        if isinstance(first, bytes):
            self._unsent.append(length + first)
        else:
            self._unsent += (length, first)
        self._unsent += others
        self._pump()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._pump()
        if self.is_idle:
            self._on_idle()

    def close(self) -> None:
        self._unsent.clear()
        self._paused = True
        if self._reading is not None:
            self._reading.cancel()

    def _pump(self) -> None:
        unsent = self._unsent
        while unsent and not self._paused and self._reading is None:
            part = unsent[0]
            if isinstance(part, FileRegion):
                self._send_piece(part)
            else:
                assert isinstance(part, bytes)
                unsent.popleft()
                self._transport.write(part)

    def _send_piece(self, region: FileRegion) -> None:
        start = self._position
        size = min(PIECE_BYTES, len(region) - start)
        try:
            piece = region.read_if_cached(start, size)
        except StorageError as error:
            self._fail(error)
            return
        if piece is not None:
            self._write_piece(region, piece)
            return
        # Not in the page cache: the disk is waited for in a thread, and this connection alone waits.
        self._reading = asyncio.get_running_loop().run_in_executor(self._executor, region.read, start, size)
        self._reading.add_done_callback(lambda done: self._piece_read(region, done))

    def _piece_read(self, region: FileRegion, done: "asyncio.Future[bytes]") -> None:
        self._reading = None
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, StorageError):
            self._fail(error)
            return
        self._write_piece(region, done.result())
        self._pump()
        if self.is_idle:
            self._on_idle()

    def _write_piece(self, region: FileRegion, piece: bytes) -> None:
        self._position += len(piece)
        if self._position == len(region):
            self._position = 0
            self._unsent.popleft()
        self._transport.write(piece)

    def _fail(self, error: StorageError) -> None:
        self.close()
        self._on_failure(error)
