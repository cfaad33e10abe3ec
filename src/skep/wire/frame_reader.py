"""Cuts a stream of bytes into frames, each four bytes of length and a request. Sans-IO.

Memory. An idle connection owns no buffer. All connections of a loop receive into one shared scratch buffer, and the
unfinished rest of a read is copied out of it. A request too large for the scratch buffer gets a buffer of its own,
which grows with the bytes that arrive: a frame that announces 100 MiB and sends ten bytes costs at most a mebibyte. All
such buffers count against one ``ReceiveBudget``. When it is spent, a connection that needs more stops reading until
another releases some.

Buffers of large requests are reused (``LargeBuffers``). Python fills a new buffer with zeros and the kernel has to map
it page by page, which took 15 % of a broker's time when producers sent frames of a mebibyte. A request that does not
fit into one of them gets address space for all of it, and the kernel provides memory as its bytes arrive. Copying 45
MiB into a buffer of 90 would hold the event loop for 60 ms.

A frame is a view into one of these buffers and is valid until the next ``get_buffer`` or ``keep_rest`` of any
connection. Its reader copies what it keeps.
"""

import mmap
from collections.abc import Callable

from skep.base.errors import DecodeError
from skep.wire.primitives import INT32

SCRATCH_SIZE = 64 * 1024
FIRST_GROWTH = 1024 * 1024
BUFFERS_KEPT = 16
"""Buffers of FIRST_GROWTH bytes each. They are created when needed and then kept."""
_LENGTH = 4
_TLS_HANDSHAKE = 0x1603
"""The first two bytes of TLS: a handshake record, and the upper half of the version."""


class ReceiveBudget:
    """Counts the bytes that unfinished large requests of all connections hold.

    ``held`` exceeds ``limit`` by at most one request. One reader at a time may exceed it, so that there is always one
    that can finish and release its bytes. Otherwise eight requests with an eighth of the limit each would wait for each
    other forever, and a request larger than the limit for itself. Refused readers are called back once when bytes are
    released.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._beyond: object | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_contended(self) -> bool:
        return bool(self._waiting)

    def take(self, size: int, reader: object, refused: Callable[[], None]) -> bool:
        if self.held + size > self.limit:
            if self._beyond is not None and self._beyond is not reader:
                self._waiting.append(refused)
                return False
            self._beyond = reader
        self.held += size
        return True

    def hold(self, size: int) -> None:
        """Counts a complete request that is still in use after its reader has returned it."""
        self.held += size

    def release(self, size: int, reader: object) -> None:
        """Releases all bytes that ``reader`` holds."""
        self.held -= size
        if self._beyond is reader:
            self._beyond = None
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class LargeBuffers:
    """Buffers for the large requests of all connections of a loop. Owns the unused ones.

    At most ``BUFFERS_KEPT`` of ``FIRST_GROWTH`` bytes exist. If none is free, ``take`` makes a buffer of the requested
    size, which is freed after use. So a request may hold a larger buffer than the budget counts, but all requests
    together hold at most ``BUFFERS_KEPT * FIRST_GROWTH`` bytes more.
    """

    __slots__ = ("_free", "_made")

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._made = 0

    def take(self, size: int) -> memoryview:
        """Returns a buffer of ``size`` bytes with arbitrary content."""
        if size > FIRST_GROWTH:
            return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if self._free:
            return memoryview(self._free.pop())[:size]
        if self._made < BUFFERS_KEPT:
            self._made += 1
            return memoryview(bytearray(FIRST_GROWTH))[:size]
        return memoryview(bytearray(size))

    def give_back(self, buffer: memoryview) -> None:
        """Views of the buffer stay valid until the next ``take``."""
        whole = buffer.obj
        # A buffer of this size that was made beyond the limit may be kept in place of another, which is freed.
        if isinstance(whole, bytearray) and len(whole) == FIRST_GROWTH and len(self._free) < self._made:
            self._free.append(whole)


class FrameReader:
    """Cuts one connection's bytes into frames.

    Between calls one of three is true: nothing is buffered; ``_rest`` holds the beginning of a frame that fits the
    scratch buffer (or several frames, if the connection stopped taking them); ``_own`` holds ``_filled`` bytes of one
    large frame of ``_need`` bytes.
    """

    __slots__ = (
        "_budget",
        "_buffers",
        "_filled",
        "_limit_name",
        "_max_bytes",
        "_need",
        "_own",
        "_rest",
        "_scratch",
        "_view",
    )

    def __init__(
        self,
        scratch: memoryview,
        max_bytes: int,
        budget: ReceiveBudget,
        buffers: LargeBuffers,
        limit_name: str = "socket.request.max.bytes",
    ) -> None:
        self._scratch = scratch
        self._max_bytes = max_bytes
        self._limit_name = limit_name
        self._budget = budget
        self._buffers = buffers
        self._rest = b""
        self._own: memoryview | None = None
        self._filled = 0
        self._need = 0
        self._view: memoryview = scratch[:0]

    @property
    def large_bytes(self) -> int | None:
        """The received bytes of an unfinished request that counts against the budget; None if there is none."""
        return None if self._own is None else self._filled

    @property
    def has_unread(self) -> bool:
        """Whether received bytes are buffered: a complete large frame, or any part of small frames."""
        return bool(self._rest) if self._own is None else self._filled == self._need

    def get_buffer(self) -> memoryview:
        """Returns the buffer for the next bytes. It is empty only if a large frame is complete and was not taken."""
        if self._own is not None:
            # Limited, because a client can keep sending for as long as one call receives.
            return self._own[self._filled : self._filled + FIRST_GROWTH]
        rest = self._rest
        if rest:
            self._scratch[: len(rest)] = rest
            return self._scratch[len(rest) :]
        return self._scratch

    def received(self, size: int) -> None:
        """Called after ``size`` bytes were written into the buffer of the last ``get_buffer``."""
        if self._own is not None:
            self._filled += size
            return
        self._view = self._scratch[: len(self._rest) + size]
        self._rest = b""

    def next_frame(self) -> memoryview | None:
        """Returns the next complete frame without its length, or None. Raises DecodeError for an impossible length."""
        if self._own is not None:
            return self._own_frame()
        view = self._view
        available = len(view)
        if available < _LENGTH:
            return None
        (length,) = INT32.unpack_from(view)
        if not 0 < length <= self._max_bytes:
            raise self._impossible(length)
        need = _LENGTH + length
        if available < need:
            return None
        self._view = view[need:]
        return view[_LENGTH:need]

    def _own_frame(self) -> memoryview | None:
        if self._own is None or self._filled < self._need:
            return None
        frame = self._own[_LENGTH : self._need]
        self._give_back_own()
        return frame

    def _give_back_own(self) -> None:
        own, self._own, self._filled = self._own, None, 0
        if own is not None:
            # In this order: ``release`` wakes readers that take buffers, and the frame in this buffer is not read yet.
            self._budget.release(len(own), self)
            self._buffers.give_back(own)

    def allow(self, max_bytes: int, budget: ReceiveBudget) -> None:
        """Allows larger frames, after the client has authenticated. From now on they count against ``budget``."""
        self._max_bytes, self._limit_name = max_bytes, "socket.request.max.bytes"
        if self._own is not None:
            self._budget.release(len(self._own), self)
            budget.hold(len(self._own))
        self._budget = budget

    def _impossible(self, length: int) -> DecodeError:
        if length >> 16 == _TLS_HANDSHAKE:
            return DecodeError(
                "it began a TLS handshake, and this listener has no TLS; the client needs security.protocol=PLAINTEXT "
                "or SASL_PLAINTEXT, or another port"
            )
        return DecodeError(f"a request has {length} bytes; at most {self._max_bytes} are allowed ({self._limit_name})")

    def keep_rest(self, on_room: Callable[[], None], *, begins_large: bool = True) -> bool:
        """Copies the unfinished rest. Must be called after the last frame was taken, before any connection receives.

        Returns False if the budget is spent and reading must stop. ``on_room`` is then called when this may succeed.
        Without ``begins_large`` no buffer is taken for a large request; the caller does not read on.
        """
        if self._own is not None:
            return self._filled < len(self._own) or self._filled == self._need or self._grow(on_room)
        view = self._view
        if not len(view):
            return True
        self._rest = bytes(view)
        self._view = view[:0]
        return self._adopt_large(on_room) if begins_large else True

    def _adopt_large(self, on_room: Callable[[], None]) -> bool:
        """Moves the beginning of a frame that does not fit the scratch buffer into a buffer of its own."""
        rest = self._rest
        if len(rest) < _LENGTH:
            return True
        (length,) = INT32.unpack_from(rest)
        if not 0 < length <= self._max_bytes:
            raise self._impossible(length)
        need = _LENGTH + length
        if need <= len(self._scratch) or len(rest) >= need:
            return True
        capacity = min(need, max(FIRST_GROWTH, len(rest)))
        if not self._budget.take(capacity, self, on_room):
            return False
        self._own = self._buffers.take(capacity)
        self._own[: len(rest)] = rest
        self._filled, self._need, self._rest = len(rest), need, b""
        return True

    def _grow(self, on_room: Callable[[], None]) -> bool:
        own = self._own
        assert own is not None
        capacity = min(self._need, 2 * len(own))
        if not self._budget.take(capacity - len(own), self, on_room):
            return False
        if isinstance(whole := own.obj, mmap.mmap):
            self._own = memoryview(whole)[:capacity]
            return True
        grown = self._buffers.take(self._need)
        grown[: self._filled] = own
        self._buffers.give_back(own)
        self._own = grown[:capacity]
        return True

    def replay_rest(self) -> None:
        """Makes kept frames available to ``next_frame`` when the connection takes requests again."""
        if self._own is None and self._rest:
            self._view = memoryview(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Releases the buffer of the unfinished frame."""
        self._give_back_own()
        self._rest = b""
        self._view = self._scratch[:0]
