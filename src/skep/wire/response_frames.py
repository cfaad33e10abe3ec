"""Answers out of a stream of bytes, for a connection that asks: four bytes of length, then an answer. Sans-IO.

Who asks knows whom, and how much was asked for; so, unlike the requests of strangers (``framing``), a long answer gets
its room at once and the socket is read into it: the mebibytes of a Fetch answer are not copied here. Every frame that
is handed out is its taker's to keep. A taker that is done with one may give it back: its room is used for the next long
answer, which saves filling a new one with zeros and having the kernel map it.
"""

from skep.base.errors import DecodeError
from skep.wire.primitives import INT32

SCRATCH_SIZE = 64 * 1024
_LENGTH = INT32.size
_SHORTEST = INT32.size
"""A correlation id."""
LARGEST_SPARE = 4 << 20


class AnswerFrames:
    """Cuts one connection's bytes into frames.

    Between calls one of two is true: ``_own`` is the room of an answer of which ``_filled`` bytes, not all, are there;
    or there is none, and ``_scratch`` begins with ``_filled`` bytes, at most three, of the next length. ``_spare`` is
    room that nobody uses.
    """

    __slots__ = ("_filled", "_max_bytes", "_own", "_scratch", "_spare")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._scratch = memoryview(bytearray(SCRATCH_SIZE))
        self._own: memoryview | None = None
        self._spare = bytearray()
        self._filled = 0

    def give_back(self, frame: memoryview) -> None:
        """Whoever was handed the frame is done with it: neither it nor a part of it is looked at any more."""
        room = frame.obj
        if isinstance(room, bytearray) and len(self._spare) < len(room) <= LARGEST_SPARE:
            self._spare = room

    def _room(self, size: int) -> memoryview:
        if len(self._spare) < size:
            return memoryview(bytearray(size))
        spare, self._spare = self._spare, bytearray()
        return memoryview(spare)[:size]

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return (self._scratch if self._own is None else self._own)[self._filled :]

    def received(self, size: int) -> list[memoryview]:
        """``size`` bytes were written into the buffer that ``get_buffer`` gave: the frames that are whole by that.

        They come without their lengths. DecodeError when a length is impossible.
        """
        self._filled += size
        own = self._own
        if own is None:
            return self._cut()
        if self._filled < len(own):
            return []
        self._own, self._filled = None, 0
        return [own]

    def _cut(self) -> list[memoryview]:
        scratch, filled, position = self._scratch, self._filled, 0
        frames: list[memoryview] = []
        while filled - position >= _LENGTH:
            (length,) = INT32.unpack_from(scratch, position)
            if not _SHORTEST <= length <= self._max_bytes:
                raise DecodeError(f"an answer of {length} bytes, {self._max_bytes} are allowed")
            start, end = position + _LENGTH, position + _LENGTH + length
            if end > filled:
                own = self._own = self._room(length)
                own[: filled - start] = scratch[start:filled]
                self._filled = filled - start
                return frames
            frames.append(memoryview(bytes(scratch[start:end])))
            position = end
        self._filled = filled - position
        scratch[: self._filled] = scratch[position:filled]
        return frames
