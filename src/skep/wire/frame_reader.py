"""Frames out of a stream of bytes: four bytes of length, then a request. No input or output here.

Memory. An idle connection owns nothing: all connections of a loop receive into one shared scratch buffer, and what a
read leaves unfinished is copied out of it. A request too large for the scratch buffer gets one of its own that grows
with what has really arrived, so a frame that announces 100 MiB and sends ten bytes costs a mebibyte at the most. All
such buffers count against one ``ReceiveBudget``; when that is spent, a connection that needs more stops reading until
another gives some back.

Buffers of large requests are used again (``LargeBuffers``). Python fills a new buffer with zeros and the kernel has to
map it page by page, which took 15 % of a broker's time when producers sent frames of a mebibyte. A request that does
not fit into one of them gets address space for all of it, and the kernel gives it memory as its bytes arrive. To copy
45 MiB into a buffer of 90 would hold the event loop for 60 ms.

A frame is handed out as a view into one of these buffers and is valid until the next ``get_buffer`` or ``keep_rest`` of
any connection: its reader copies what it keeps.
"""

import mmap
from collections.abc import Callable

from skep.base.errors import DecodeError
from skep.wire.primitives import INT32

SCRATCH_SIZE = 64 * 1024
FIRST_GROWTH = 1024 * 1024
BUFFERS_KEPT = 16
"""Of FIRST_GROWTH bytes each. They are made when they are needed, and then stay."""
_LENGTH = 4


class ReceiveBudget:
    """Bytes that unfinished large requests may hold over all connections.

    ``held`` never exceeds ``limit`` by more than one request: one reader at a time may go beyond, so that there is
    always one that can finish and give its bytes back. Otherwise eight requests that have each got an eighth of the
    limit would wait for each other for ever, and a request larger than the limit for itself. Those who were refused are
    called back, once, when something is released.
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
        """Counts a whole request that is still needed though its reader has given it out."""
        self.held += size

    def release(self, size: int, reader: object) -> None:
        """All that ``reader`` holds."""
        self.held -= size
        if self._beyond is reader:
            self._beyond = None
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class LargeBuffers:
    """Buffers for the large requests of all connections of a loop. Owns those that nobody uses at the moment.

    At most ``BUFFERS_KEPT`` of ``FIRST_GROWTH`` bytes exist at a time. Whoever finds none gets a new buffer of the size
    that it asked for, which is freed after use. So a request may hold a larger buffer than the budget counts, but all
    requests together no more than ``BUFFERS_KEPT * FIRST_GROWTH`` bytes more.
    """

    __slots__ = ("_free", "_made")

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._made = 0

    def take(self, size: int) -> memoryview:
        """A buffer of ``size`` bytes with anything in it."""
        if size > FIRST_GROWTH:
            return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if self._free:
            return memoryview(self._free.pop())[:size]
        if self._made < BUFFERS_KEPT:
            self._made += 1
            return memoryview(bytearray(FIRST_GROWTH))[:size]
        return memoryview(bytearray(size))

    def give_back(self, buffer: memoryview) -> None:
        """Views of the buffer stay good until the next ``take``."""
        whole = buffer.obj
        # A buffer of just this size that was made beyond the limit may come back in place of another, which is freed.
        if isinstance(whole, bytearray) and len(whole) == FIRST_GROWTH and len(self._free) < self._made:
            self._free.append(whole)


class FrameReader:
    """Cuts one connection's bytes into frames.

    Between calls one of three is true: nothing is buffered; ``_rest`` holds the beginning of a frame that fits the
    scratch buffer (or several frames, when the connection stopped taking them); ``_own`` holds ``_filled`` bytes of
    one large frame of ``_need`` bytes.
    """

    __slots__ = ("_budget", "_buffers", "_filled", "_max_bytes", "_need", "_own", "_rest", "_scratch", "_view")

    def __init__(self, scratch: memoryview, max_bytes: int, budget: ReceiveBudget, buffers: LargeBuffers) -> None:
        self._scratch = scratch
        self._max_bytes = max_bytes
        self._budget = budget
        self._buffers = buffers
        self._rest = b""
        self._own: memoryview | None = None
        self._filled = 0
        self._need = 0
        self._view: memoryview = scratch[:0]

    @property
    def large_bytes(self) -> int | None:
        """How much there is of an unfinished request that counts against the budget; None when there is none."""
        return None if self._own is None else self._filled

    @property
    def has_unread(self) -> bool:
        """Whether received bytes wait here: a whole frame, or in a small one's case its beginning."""
        return bool(self._rest) if self._own is None else self._filled == self._need

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty, unless a large frame is whole and was not taken."""
        if self._own is not None:
            # No more than that at once: a client can send for as long as one call receives.
            return self._own[self._filled : self._filled + FIRST_GROWTH]
        rest = self._rest
        if rest:
            self._scratch[: len(rest)] = rest
            return self._scratch[len(rest) :]
        return self._scratch

    def received(self, size: int) -> None:
        """``size`` bytes were written into the buffer that ``get_buffer`` gave last."""
        if self._own is not None:
            self._filled += size
            return
        self._view = self._scratch[: len(self._rest) + size]
        self._rest = b""

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None. DecodeError when a length is impossible."""
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
            # In this order: ``release`` wakes readers that take buffers, and the frame in this one is not read yet.
            self._budget.release(len(own), self)
            self._buffers.give_back(own)

    def _impossible(self, length: int) -> DecodeError:
        return DecodeError(f"a request of {length} bytes, socket.request.max.bytes is {self._max_bytes}")

    def keep_rest(self, on_room: Callable[[], None]) -> bool:
        """Call after the last frame was taken, before anybody else receives: copies the unfinished rest.

        False: the budget is spent, stop reading; ``on_room`` is called when it is worth calling this again.
        """
        if self._own is not None:
            return self._filled < len(self._own) or self._filled == self._need or self._grow(on_room)
        view = self._view
        if not len(view):
            return True
        self._rest = bytes(view)
        self._view = view[:0]
        return self._adopt_large(on_room)

    def _adopt_large(self, on_room: Callable[[], None]) -> bool:
        """Moves the beginning of a frame that the scratch buffer cannot hold into a buffer of its own."""
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
        """Makes kept frames available to ``next_frame`` again, for a connection that takes requests again."""
        if self._own is None and self._rest:
            self._view = memoryview(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Gives back what the unfinished frame holds."""
        self._give_back_own()
        self._rest = b""
        self._view = self._scratch[:0]
